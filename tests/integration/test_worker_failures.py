"""Whatever fails, every request has one outcome and its neighbours never notice."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from local.kafka import LocalKafka
from schemas.deadline import Deadline
from schemas.errors import ErrorCode
from schemas.outcome import JobState, Outcome, decode_stored
from schemas.progress import Progress
from schemas.record import Origin
from store import open_store
from tests.integration.tcp_gate import TcpGate
from tests.integration.topic_client import Read, TopicClient, headers_of, rows_request, values_of
from tests.integration.worker_process import Installation
from tests.models import identity, write_model

pytestmark = pytest.mark.kafka

_ONNX_CONFIG = """
backend: "onnxruntime" max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def done(offset: int) -> Progress:
    """Everything below `offset` is done, and nothing else is known."""
    return Progress(offset, offset)


def error_code(outcome: Outcome) -> ErrorCode:
    error = outcome.error()
    assert error is not None
    return error.code


async def test_one_poison_row_fails_alone(site: Installation) -> None:
    site.add_device("dev", max_batch_size=32, delay_us=60_000_000, fail_value=666)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        reply_to = await client.make_replies()
        rows = [666.0 if n == 13 else float(n) for n in range(32)]
        sent = await client.send_many("dev", [rows_request([value, 1.0]) for value in rows], reply_to=reply_to)
        outcomes = await (await client.read(reply_to.topic)).answered(id_ for id_, _ in sent)
        dead = await (await client.dead("dev")).until(lambda read: bool(read.records))
        await client.committed("dev", done(32))
        await dead.everything()
    for (id_, origin), value in zip(sent, rows, strict=True):
        if value != 666:
            assert values_of(outcomes[id_]) == [value, 1.0]
            continue
        assert (outcomes[id_].state, error_code(outcomes[id_])) == (JobState.FAILED, ErrorCode.MODEL_FAILED)
        [letter] = dead.records
        told = headers_of(letter)
        assert told["ce_id"] == id_.encode()
        assert told["tidegate-dead-code"] == b"model_failed"
        assert told["tidegate-dead-stage"] == b"infer"
        assert told["tidegate-dead-attempts"] == b"1"
        assert told["tidegate-dead-origin"] == str(origin).encode()
        assert b"fail" in told["tidegate-dead-message"]
        assert letter.value.endswith(struct.pack("<2f", 666, 1))


async def test_expired_requests_are_never_run_and_not_dead_lettered(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=1000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        late, _ = await client.send("dev", rows_request([1.0]), deadline=Deadline(now_ms() - 1), stored=True)
        running, _ = await client.send("dev", rows_request([2.0]))
        blocked, _ = await client.send("dev", rows_request([3.0]), deadline=Deadline.after(60_000, now_ms=now_ms()))
        # One runs and one is prepared ahead; this one's time is over before either has ended.
        overtaken, _ = await client.send("dev", rows_request([4.0]), deadline=Deadline.after(900, now_ms=now_ms()))
        results = await client.results("dev")
        outcomes = await results.answered([late, running, blocked, overtaken])
        await client.committed("dev", done(4))
        assert worker.metric("tidegate_batch_rows_sum", model="dev") == 2
        assert not (await (await client.dead("dev")).everything()).records
    for id_ in (late, overtaken):
        assert (outcomes[id_].state, outcomes[id_].started_ms) == (JobState.EXPIRED, 0)
        assert error_code(outcomes[id_]) is ErrorCode.DEADLINE_EXCEEDED
    assert {outcomes[running].state, outcomes[blocked].state} == {JobState.SUCCEEDED}
    assert outcomes[overtaken].finished_ms < outcomes[blocked].finished_ms


async def test_a_model_that_fails_to_load_answers_those_who_wait_and_serves_once_it_is_corrected(
    site: Installation,
) -> None:
    version = write_model(site.repository, "broken", None, config=_ONNX_CONFIG)
    (version / "model.onnx").write_bytes(b"no model at all")
    site.add_device("fine")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        broken = await client.send_many("broken", [rows_request([1.0] * 4)] * 3)
        fine, _ = await client.send("fine", rows_request([1.0]))
        await (await client.results("fine")).answered([fine])
        results = await client.results("broken")
        outcomes = await results.answered(id_ for id_, _ in broken)
        assert {error_code(outcome) for outcome in outcomes.values()} == {ErrorCode.MODEL_LOAD_FAILED}
        dead = await (await client.dead("broken")).until(lambda read: len(read.records) >= 3)
        assert {headers_of(letter)["tidegate-dead-stage"] for letter in dead.records} == {b"load"}
        write_model(site.repository, "broken", identity())
        again, _ = await client.send("broken", rows_request([5.0] * 4))
        outcome = (await results.answered([again]))[again]
        await client.committed("broken", done(4))
    assert values_of(outcome) == [5.0] * 4


def _hostile(client: TopicClient) -> dict[str, tuple[bytes | None, list[tuple[str, Any]]]]:
    good = msgspec.json.encode({"inputs": [_json_input([1, 1], [1.0])]})

    def headed(name: str, value: bytes | None) -> tuple[bytes, list[tuple[str, Any]]]:
        return good, [(name, value)]

    def shaped(shape: list[int]) -> tuple[bytes, list[tuple[str, Any]]]:
        return msgspec.json.encode({"inputs": [_json_input(shape, [])]}), []

    return {
        "tombstone": (None, []),
        "empty": (b"", []),
        "no JSON": (b"\xff\x00{", []),
        "too deep": (b"[" * 100_000, []),
        "no tensor has such a shape": shaped([1, 0, 1 << 70]),
        "an endless name": (
            msgspec.json.encode({"inputs": [{**_json_input([1], [1]), "name": "\u200b" * 300_000}]}),
            [],
        ),
        "no such version": headed("tidegate-model-version", b"99"),
        "a deadline beyond time": headed("tidegate-deadline-ms", b"9" * 400),
        "a deadline that is no number": headed("tidegate-deadline-ms", b"soon"),
        "a null header": headed("tidegate-deadline-ms", None),
        "a header length beyond the value": headed("inference-header-content-length", b"99999999"),
        "a negative priority": headed("tidegate-priority", b"-" + b"9" * 400),
        "an endless id": headed("ce_id", b"i" * 1_048_000),
        "an endless trace": headed("traceparent", b"t" * 1_048_000),
        "a claim that leads out": headed("tidegate-claim", b"../../../etc/passwd"),
        "an endless claim": headed("tidegate-claim", b"c" * 1_000_000),
        "a claim of nothing": headed("tidegate-claim", b"claims/never"),
        "a reply to a partition that is not": headed("tidegate-reply-to", client.topics.replies.encode() + b"/99"),
        "a reply to a negative partition": headed("tidegate-reply-to", client.topics.replies.encode() + b"/-1"),
        "a reply to a topic that is not": headed("tidegate-reply-to", b"no.such.topic/0"),
        "a reply to a topic of others": headed("tidegate-reply-to", client.topics.control.encode() + b"/0"),
    }


def _json_input(shape: list[int], data: list[float]) -> dict[str, object]:
    return {"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": data}


async def test_hostile_records_get_an_outcome_each_and_the_rest_is_served(site: Installation) -> None:
    site.add_device("dev", dims="-1")
    site.add_device("deep", dims="-1, -1")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        await client.make_replies()
        control_before = await _announcements(client)
        hostile = _hostile(client)
        origins = {}
        for model in ("dev", "deep"):
            for name, (value, headers) in hostile.items():
                origins[model, name] = await client.send_raw(model, value, headers=headers)
            dims = 2 if model == "dev" else 3
            good = await client.send_json(model, {"inputs": [_json_input([1] * dims, [1.0])]})
            results = await client.results(model)
            await _all_answered(results, [origins[model, name] for name in hostile], str(good))
            await client.committed(model, done(len(hostile) + 1))
        assert await _announcements(client) == control_before
        dead = await (await client.dead("dev")).everything()
        assert worker.get("/health/live").status_code == 200
    told = {headers_of(letter)["tidegate-dead-origin"].decode(): headers_of(letter) for letter in dead.records}
    for name in ("tombstone", "empty", "no JSON", "too deep", "a deadline that is no number", "a claim that leads out"):
        letter = told[str(origins["dev", name])]
        assert letter["tidegate-dead-code"] == b"undecodable_record"
        assert letter["tidegate-dead-stage"] == b"decode"
        assert letter["tidegate-dead-attempts"] == b"1"


async def _announcements(client: TopicClient) -> list[bytes]:
    """What is on the control topic, but for what workers tell of themselves and of their loads."""
    records = (await (await client.read(client.topics.control)).everything()).records
    return [record.value for record in records if (record.key or b"").startswith(b"model/")]


async def _all_answered(results: Read, origins: list[Origin], good: str) -> None:
    def answered() -> set[Origin]:
        return {outcome.origin for outcomes in results.outcomes.values() for outcome in outcomes}

    try:
        await results.until(lambda read: set(origins) <= answered() and good in read.outcomes)
    except AssertionError as late:
        missing = set(origins) - answered()
        raise AssertionError(f"no outcome for offsets {sorted(origin.offset for origin in missing)}") from late


async def test_stored_outcomes_wait_for_an_object_store_that_is_down(
    site: Installation, s3_server: str, s3_bucket_url: str
) -> None:
    site.add_device("dev")
    async with TcpGate(s3_server) as gate, client_of(site) as client:
        async with site.worker(store=s3_bucket_url, s3_url=gate.url) as worker:
            await worker.ready()
            await gate.close()
            sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(5)], stored=True)
            unstored, _ = await client.send("dev", rows_request([9.0]))
            results = await client.results("dev")
            await results.answered([unstored])
            await worker.logged("reach_store_again")
            assert results.outcomes.keys() == {unstored}
            assert (await client.progress("dev"))[0] == Progress(0, 6, ((5, 6),))
            await gate.open()
            await results.answered(id_ for id_, _ in sent)
            await client.committed("dev", done(6))
        store = open_store(s3_bucket_url)
        stored = [decode_stored(store.get(await client.outcome_key(origin))) for _, origin in sent]
    assert [values_of(outcome) for outcome in stored] == [[float(n)] for n in range(5)]


async def test_a_worker_stops_while_the_object_store_is_down_and_the_next_one_goes_on(
    site: Installation, s3_server: str, s3_bucket_url: str
) -> None:
    site.add_device("dev")
    store = open_store(s3_bucket_url)
    store.put("claims/one", msgspec.json.encode({"inputs": [_json_input([1, 1], [7.0])]}))
    async with TcpGate(s3_server) as gate, client_of(site) as client:
        async with site.worker(store=s3_bucket_url, drain_s=1, s3_url=gate.url) as worker:
            await worker.ready()
            await gate.close()
            claimed = await client.send_raw("dev", b"", headers=[("tidegate-claim", b"claims/one")])
            stored, _ = await client.send("dev", rows_request([8.0]), stored=True)
            await worker.logged("reach_store_again")
            worker.terminate()
            assert await worker.ended(within_s=20) == 0
        await gate.open()
        async with site.worker(store=s3_bucket_url, s3_url=gate.url):
            results = await client.results("dev")
            outcomes = await results.answered([str(claimed), stored])
            await client.committed("dev", done(2))
    assert [values_of(outcomes[id_]) for id_ in (str(claimed), stored)] == [[7.0], [8.0]]


async def test_a_repository_that_comes_late_is_waited_for(
    site: Installation, s3_server: str, s3_bucket_url: str
) -> None:
    site.add_device("dev")
    config = (site.repository / "dev" / "config.pbtxt").read_bytes()
    open_store(s3_bucket_url).put("dev/config.pbtxt", config)
    open_store(s3_bucket_url).put("dev/1/empty", b"")
    async with TcpGate(s3_server) as gate, client_of(site) as client:
        await gate.close()
        async with site.worker(repository=s3_bucket_url, models='["dev"]', s3_url=gate.url) as worker:
            await worker.logged("wait_to_start")
            await gate.open()
            await worker.ready()
            id_, _ = await client.send("dev", rows_request([1.0]))
            await (await client.results("dev")).answered([id_])


async def test_a_worker_that_starts_while_the_repository_is_away_serves_what_its_machine_has(
    site: Installation, s3_server: str, s3_bucket_url: str
) -> None:
    write_model(site.repository, "sum", identity())
    model = (site.repository / "sum" / "1" / "model.onnx").read_bytes()
    open_store(s3_bucket_url).put("sum/1/model.onnx", model)
    async with TcpGate(s3_server) as gate, client_of(site) as client:
        results = None
        for is_away in (False, True):
            if is_away:
                await gate.close()
            async with site.worker(repository=s3_bucket_url, s3_url=gate.url) as worker:
                await worker.ready()
                results = results or await client.results("sum")
                id_, _ = await client.send("sum", rows_request([1.0] * 4))
                assert values_of((await results.answered([id_]))[id_]) == [1.0] * 4
        assert any("use_last_listing" in line for line in worker.lines)
