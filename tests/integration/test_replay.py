"""The command `replay` on a real broker: what failed is answered once it can be, under its id and only once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient
from msgspec.structs import replace

from local.kafka import LocalKafka
from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, decode_stored
from schemas.progress import Progress
from schemas.record import Origin
from schemas.topics import Topics
from store import open_store
from tests.integration.topic_client import TopicClient, headers_of, rows_request, values_of
from tests.integration.worker_process import Installation
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.dead_letter import dead_letter_headers
from workers.delivery import Delivery, Partition
from workers.replay import Replaying
from workers.replayed import Replayed
from workers.selection import Selection, select
from workers.settings import ReplaySettings

pytestmark = pytest.mark.kafka

POISON = 666.0
_PATIENCE_S = 60.0
_POISONED = InferenceError(ErrorCode.MODEL_FAILED, "a poisoned row")


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


@asynccontextmanager
async def replay(site: Installation, *arguments: str) -> AsyncIterator[Process]:
    """The command, running; it is killed if the test ends before it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers", "replay", *arguments),
        env={**os.environ, **site.environment()},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def replayed(site: Installation, *arguments: str) -> tuple[int, str, str]:
    """Exit status, output and standard error of the command."""
    async with replay(site, *arguments) as process, asyncio.timeout(_PATIENCE_S):
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


async def run_here(site: Installation, selection: Selection | None = None, **settings: Any) -> Replayed:
    """The same within this process, for tests that need no command line."""
    replaying = Replaying(
        ReplaySettings(kafka_bootstrap=site.bootstrap, prefix=site.prefix, **settings),
        Selection() if selection is None else selection,
        on_chosen=lambda count: None,
        on_sent=lambda count: None,
    )
    return await replaying.run()


async def ends(site: Installation, *topics: str) -> list[int]:
    """How far each topic's only partition reaches."""
    keys = [TopicPartition(topic, 0) for topic in topics]
    async with AIOKafkaConsumer(bootstrap_servers=site.bootstrap) as consumer:
        offsets = await consumer.end_offsets(keys)
    return [offsets[key] for key in keys]


async def bury(site: Installation, model: str, letters: Iterable[dict[str, Any]]) -> None:
    """Write dead letters as a worker does. Of each: `id`, and what else differs from a model's failure just now."""
    topics = Topics(site.prefix)
    infer = Partition(topics.infer(model), 0, AckTracker(Progress(0, 0)), BrokerClock())
    async with AIOKafkaProducer(bootstrap_servers=site.bootstrap, max_request_size=4 << 20) as producer:
        sent = []
        for number, letter in enumerate(letters):
            headers = [("ce_id", letter["id"].encode()), *letter.get("headers", [])]
            value = letter.get("value", b"{}")
            origin = Origin(infer.topic, 0, letter.get("offset", 1000 + number))
            buried = dead_letter_headers(
                Delivery(infer, origin, 7, headers, value),
                letter.get("error", _POISONED),
                stage=letter.get("stage", "infer"),
                attempt=letter.get("attempt", 1),
                now_ms=letter.get("time_ms", time.time_ns() // 1_000_000),
            )
            sent.append(await producer.send(topics.dead(model), value, partition=0, headers=buried))
        await asyncio.gather(*sent)


async def sent_ids(client: TopicClient, model: str) -> list[str]:
    """The ids of what lies on a request topic, in order."""
    read = await (await client.read(client.topics.infer(model))).everything()
    return [headers_of(record)["ce_id"].decode() for record in read.records]


async def test_what_failed_is_answered_under_its_id_once_its_model_is_corrected(site: Installation) -> None:
    site.add_device("dev", max_batch_size=8, fail_value=POISON)
    topics = Topics(site.prefix)
    async with TopicClient(site.bootstrap, site.prefix) as client:
        async with site.worker() as worker:
            await worker.ready()
            reply_to = await client.make_replies()
            deadline = Deadline(time.time_ns() // 1_000_000 + 60_000)
            waited, _ = await client.send(
                "dev", rows_request([POISON, 1.0]), reply_to=reply_to, deadline=deadline, traceparent="00-ab-cd-01"
            )
            job, job_origin = await client.send("dev", rows_request([POISON, 2.0]), stored=True)
            large, _ = await client.send("dev", rows_request([POISON, *[3.0] * 200_000]))
            plain = await client.send_json(
                "dev", {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [POISON]}]}
            )
            fine, _ = await client.send("dev", rows_request([5.0]))
            results = await client.results("dev")
            await results.answered([job, large, str(plain), fine])
            replies = await client.read(topics.replies)
            await replies.answered([waited])
            await client.committed("dev", Progress(5, 5))
        before = await ends(site, topics.infer("dev"), topics.dead("dev"))
        assert before == [5, 4]

        status, out, _ = await replayed(site, "--dry-run")
        assert (status, "would replay 4 requests; nothing was sent" in out) == (0, True)
        for shown in ("dev", "infer", "model_failed", "a row begins with the value"):
            assert shown in out
        assert await ends(site, topics.infer("dev"), topics.dead("dev")) == before

        site.add_device("dev", max_batch_size=8)
        status, out, _ = await replayed(site)
        assert (status, out.startswith("replayed 4 of 4 requests in ")) == (0, True)
        status, out, _ = await replayed(site)
        assert (status, out.startswith("replayed 0 of 0 ")) == (0, True)
        assert "4 were sent by a former replay" in out
        async with site.worker():
            ids = [waited, job, large, str(plain)]
            await results.until(lambda read: sum(len(read.outcomes[id_]) for id_ in ids) >= 7)
            await client.committed("dev", Progress(9, 9))
        await results.everything()
        await replies.everything()
        store = open_store(str(site.store))
        stored = decode_stored(store.get(await client.outcome_key(job_origin)))
        again = (await (await client.read(topics.infer("dev"))).everything()).records[5:]
    for id_ in ids:
        outcome = results.outcomes[id_][-1]
        assert (outcome.state, outcome.origin.offset >= 5) == (JobState.SUCCEEDED, True)
        if outcome.claim:
            outcome = replace(outcome, value=store.get(outcome.claim))
        assert values_of(outcome)[0] == POISON
    assert [len(results.outcomes[id_]) for id_ in ids] == [1, 2, 2, 2]
    assert len(replies.outcomes[waited]) == 1  # its caller has gone
    assert stored.state is JobState.FAILED  # the end that the job's id has told stands
    # In the order in which they failed, and a batch's requests may fail in any.
    told = next(headers for headers in map(headers_of, again) if headers["ce_id"] == waited.encode())
    assert (told["tidegate-attempt"], told["traceparent"]) == (b"2", b"00-ab-cd-01")
    assert told["tidegate-replay-of"] == f"{topics.infer('dev')}/0/0".encode()


@pytest.mark.parametrize(
    ("asked", "settings", "ids"),
    [
        ({}, {}, ["b-load", "a-old", "a-memory", "a-decode", "b-infer"]),
        ({}, {"model": ["a"]}, ["a-old", "a-memory", "a-decode"]),
        ({}, {"model": ["a", "b"], "limit": 2}, ["b-load", "a-old"]),
        ({"codes": ["model_failed"]}, {}, ["a-old", "a-memory", "b-infer"]),
        ({"stages": ["load", "decode"]}, {}, ["b-load", "a-decode"]),
        ({"cause": "OUT OF MEMORY"}, {}, ["a-memory"]),
        ({"since": "90m", "until": "10m"}, {}, ["a-old", "a-memory"]),
        ({"codes": ["unavailable"]}, {}, []),
    ],
)
async def test_only_what_is_meant_is_sent_those_that_failed_first_first(
    site: Installation, asked: dict[str, Any], settings: dict[str, Any], ids: list[str]
) -> None:
    now_ms = time.time_ns() // 1_000_000
    minute_ms = 60_000
    memory = InferenceError(ErrorCode.MODEL_FAILED, "model 'a' failed")
    memory.__cause__ = RuntimeError("CUDA out of memory")
    load = InferenceError(ErrorCode.MODEL_LOAD_FAILED, "no such file")
    undecodable = InferenceError(ErrorCode.UNDECODABLE_RECORD, "no JSON")
    async with TopicClient(site.bootstrap, site.prefix) as client:
        await client.provision("a", "b")
        await bury(
            site,
            "a",
            [
                {"id": "a-decode", "error": undecodable, "stage": "decode", "time_ms": now_ms - 5 * minute_ms},
                {"id": "a-memory", "error": memory, "time_ms": now_ms - 20 * minute_ms},
                {"id": "a-old", "time_ms": now_ms - 60 * minute_ms},
            ],
        )
        await bury(
            site,
            "b",
            [
                {"id": "b-load", "error": load, "stage": "load", "time_ms": now_ms - 300 * minute_ms},
                {"id": "b-infer", "time_ms": now_ms},
            ],
        )
        chosen = {"codes": (), "stages": (), "cause": "", "since": "", "until": "", **asked}
        run = await run_here(site, select(now_ms=now_ms, **chosen), **settings)
        assert (run.sent, run.chosen, run.is_complete) == (len(ids), len(ids), True)
        assert run.beyond_limit == (3 if settings.get("limit") else 0)
        sent = await sent_ids(client, "a") + await sent_ids(client, "b")
    assert sorted(sent) == sorted(ids)


async def test_what_is_noted_narrows_the_next_replay_and_again_ignores_it(site: Installation) -> None:
    async with TopicClient(site.bootstrap, site.prefix) as client:
        await client.provision("m")
        await bury(site, "m", [{"id": f"i-{number}", "attempt": number} for number in range(1, 8)])
        assert (await run_here(site, limit=3)).sent == 3
        run = await run_here(site)
        assert (run.sent, run.sent_before) == (4, 3)
        assert await sent_ids(client, "m") == [f"i-{number}" for number in range(1, 8)]
        run = await run_here(site, again=True, limit=2)
        assert (run.sent, run.sent_before) == (2, 0)
        assert (await sent_ids(client, "m"))[7:] == ["i-1", "i-2"]
        await bury(site, "m", [{"id": "i-new", "offset": 5000}])
        run = await run_here(site)
        assert (run.sent, run.sent_before) == (1, 7)
        read = await (await client.read(client.topics.infer("m"))).everything()
        assert [headers_of(record)["tidegate-attempt"] for record in read.records[:3]] == [b"2", b"3", b"4"]


async def test_a_request_with_two_letters_is_sent_once(site: Installation) -> None:
    """As a worker leaves them that was killed between the letter and the commit."""
    async with TopicClient(site.bootstrap, site.prefix) as client:
        await client.provision("m")
        await bury(site, "m", [{"id": "i-1", "offset": 5}, {"id": "i-2", "offset": 6}, {"id": "i-1", "offset": 5}])
        run = await run_here(site)
        assert (run.sent, run.repeats) == (2, 1)
        run = await run_here(site)
        assert (run.sent, run.sent_before, run.repeats) == (0, 2, 1)
        assert await sent_ids(client, "m") == ["i-1", "i-2"]


async def test_what_cannot_be_sent_is_told_and_the_rest_is_sent(site: Installation) -> None:
    async with TopicClient(site.bootstrap, site.prefix) as client:
        await client.provision("m")
        await asyncio.to_thread(create_topic, site, client.topics.dead("gone"))
        await bury(site, "gone", [{"id": "g-1"}])
        await bury(site, "m", [{"id": "endless", "headers": [("x", b"x" * 1_000_100)]}, {"id": "i-1"}])
        async with AIOKafkaProducer(bootstrap_servers=site.bootstrap) as producer:
            await producer.send_and_wait(client.topics.dead("m"), b"by hand")
        status, out, _ = await replayed(site)
        assert status == 1
        for told in ("replayed 1 of 2", "1 are too large", "1 are of models that have no", "1 records are no dead"):
            assert told in out
        assert await sent_ids(client, "m") == ["i-1"]
        status, _, err = await replayed(site, "--model", "gone")
        assert (status, "no request topic" in err, "use one of m" in err) == (2, True, True)


async def test_a_wrong_selection_is_refused_before_anything_is_read(site: Installation) -> None:
    async with TopicClient(site.bootstrap, site.prefix) as client:
        await client.provision("m")
        for arguments, told in (
            (("--model", "nobody"), "use one of m"),
            (("--code", "oops"), "model_failed"),
            (("--since", "soon"), "write how long ago"),
        ):
            status, _, err = await replayed(site, *arguments)
            assert (status, told in err) == (2, True), err
    status, _, err = await replayed(site, "--kafka-bootstrap", "127.0.0.1:1")
    assert (status, "127.0.0.1:1" in err) == (1, True), err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
async def test_a_replay_that_was_stopped_goes_on_where_it_was(site: Installation, how: signal.Signals) -> None:
    count = 6000
    async with TopicClient(site.bootstrap, site.prefix) as client:
        await client.provision("m")
        await bury(site, "m", ({"id": f"i-{number}"} for number in range(count)))
        key = TopicPartition(client.topics.infer("m"), 0)
        async with replay(site) as process, AIOKafkaConsumer(bootstrap_servers=site.bootstrap) as consumer:
            async with asyncio.timeout(_PATIENCE_S):
                while (await consumer.end_offsets([key]))[key] <= 100:  # beyond the first chunk, which is noted by then
                    assert process.returncode is None
                process.send_signal(how)
                out, _ = await process.communicate()
        assert process.returncode == (130 if how is signal.SIGINT else -signal.SIGKILL), out
        run = await run_here(site)
        ids = Counter(await sent_ids(client, "m"))
    assert len(ids) == count
    assert 0 < run.sent_before < count
    repeated = sum(ids.values()) - count
    assert repeated == 0 if how is signal.SIGINT else repeated <= 100


def create_topic(site: Installation, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=site.bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}})
        admin.wait_for_topics([topic])
