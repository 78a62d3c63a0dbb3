"""Models come, go, change and misbehave while a worker serves, on a real Kafka."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.control import loading_key
from schemas.deadline import Deadline
from schemas.errors import ErrorCode
from schemas.outcome import JobState, Outcome
from schemas.progress import Progress
from tests.integration.topic_client import Read, TopicClient, response_of, rows_request, values_of
from tests.integration.worker_process import Installation
from tests.models import identity, write_model

pytestmark = pytest.mark.kafka

_ROW = [1.0, 2.0, 3.0, 4.0]
_HANGING = [7.0, 0.0, 0.0, 0.0]


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


def weigh(site: Installation, name: str, size_bytes: int) -> None:
    """Give a model of the device backend a file, which counts as what it holds in memory."""
    (site.repository / name / "1" / "weights").write_bytes(bytes(size_bytes))


async def test_models_take_turns_in_memory_for_one_and_every_request_is_answered(site: Installation) -> None:
    for name in ("a", "b", "c"):
        site.add_device(name)
        weigh(site, name, 60_000_000)
    async with client_of(site) as client, site.worker(model_memory_bytes=100_000_000) as worker:
        await worker.ready()
        reply_to = await client.make_replies()
        sent = []
        for _ in range(3):
            for name in ("a", "b", "c"):
                sent += await client.send_many(name, [rows_request(_ROW)] * 5, reply_to=reply_to)
        outcomes = await (await client.read(reply_to.topic)).answered(id_ for id_, _ in sent)
        assert worker.metric("tidegate_model_evictions_total") >= 2
        assert worker.metric("tidegate_model_memory_bytes", device="cpu") <= 100_000_000
    assert {outcome.state for outcome in outcomes.values()} == {JobState.SUCCEEDED}


async def test_a_model_that_fits_into_no_memory_is_refused_and_the_others_serve(site: Installation) -> None:
    site.add_device("large")
    weigh(site, "large", 150_000_000)
    site.add_device("small")
    async with client_of(site) as client, site.worker(model_memory_bytes=100_000_000) as worker:
        await worker.ready()
        large, _ = await client.send("large", rows_request(_ROW))
        small, _ = await client.send("small", rows_request(_ROW))
        refused = (await (await client.results("large")).answered([large]))[large]
        served = (await (await client.results("small")).answered([small]))[small]
    error = refused.error()
    assert error is not None
    assert (error.code, served.state) == (ErrorCode.MODEL_LOAD_FAILED, JobState.SUCCEEDED)
    assert "100000000" in error.message


async def test_a_new_version_takes_over_under_load_without_a_failed_request_and_a_bad_one_does_not(
    site: Installation,
) -> None:
    write_model(site.repository, "m", identity())
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.ready()
        results = await client.results("m")
        sent: list[str] = []
        swapped = asyncio.Event()

        async def load() -> None:
            while not swapped.is_set():
                sent.append((await client.send("m", rows_request(_ROW)))[0])

        loading = asyncio.create_task(load())
        await results.until(lambda read: len(read.outcomes) > 20)
        write_model(site.repository, "m", identity(), version=2)
        await worker.logged("exchange_model")
        await results.until(lambda read: _version(read.outcomes) == "2")
        bad = site.repository / "m" / "3"
        bad.mkdir()
        (bad / "model.onnx").write_bytes(b"no model")
        await worker.logged("keep_model_as_it_is")
        after = len(sent)
        await results.until(lambda read: len(read.outcomes) > after + 20)
        swapped.set()
        await loading
        outcomes = await results.answered(sent)
    assert {outcome.state for outcome in outcomes.values()} == {JobState.SUCCEEDED}
    versions = [response_of(outcomes[id_]).model_version for id_ in sent]
    assert versions == sorted(versions)  # one partition: once taken over, it stays
    assert set(versions) == {"1", "2"}


async def test_a_worker_that_starts_with_a_bad_version_serves_the_one_below_it(site: Installation) -> None:
    write_model(site.repository, "m", identity())
    bad = write_model(site.repository, "m", None, version=2)
    (bad / "model.onnx").write_bytes(b"no model")
    config = (
        'backend: "onnxruntime" input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 4 ] } '
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1, 4 ] }'
    )
    (site.repository / "m" / "config.pbtxt").write_text(config)
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.ready()
        sent = await client.send_many("m", [rows_request(_ROW)] * 3)
        results = await client.results("m")
        outcomes = await results.answered(id_ for id_, _ in sent)
        write_model(site.repository, "m", identity(), version=3)
        await worker.logged("exchange_model")
        later, _ = await client.send("m", rows_request(_ROW))
        newest = (await results.answered([later]))[later]
    assert {response_of(outcome).model_version for outcome in outcomes.values()} == {"1"}
    assert response_of(newest).model_version == "3"


def _version(outcomes: dict[str, list[Outcome]]) -> str:
    last = list(outcomes.values())[-1][0]
    return response_of(last).model_version if last.state is JobState.SUCCEEDED else ""


async def test_a_changed_configuration_is_served_and_a_touched_file_changes_nothing(site: Installation) -> None:
    site.add_device("dev", max_batch_size=4)
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.ready()
        first, _ = await client.send("dev", rows_request(_ROW))
        await (await client.results("dev")).answered([first])
        config = site.repository / "dev" / "config.pbtxt"
        config.touch()
        site.add_device("dev", max_batch_size=8)
        await worker.logged("exchange_model")
        second, _ = await client.send("dev", rows_request(*[_ROW] * 8))
        outcome = (await (await client.results("dev")).answered([second]))[second]
    assert outcome.state is JobState.SUCCEEDED


async def test_a_model_that_comes_into_a_running_pool_is_served(site: Installation) -> None:
    site.add_device("old")
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.ready()
        site.add_device("new")
        await worker.logged("add_model", "new")
        id_, _ = await client.send("new", rows_request(_ROW))
        other, _ = await client.send("old", rows_request(_ROW))
        outcome = (await (await client.results("new")).answered([id_]))[id_]
        await (await client.results("old")).answered([other])
        await client.committed("new", Progress(1, 1))
    assert values_of(outcome) == _ROW


async def test_a_model_that_leaves_the_repository_is_withdrawn_and_served_again_when_it_comes_back(
    site: Installation,
) -> None:
    site.add_device("stays")
    write_model(site.repository, "goes", identity())
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.ready()
        first, _ = await client.send("goes", rows_request(_ROW))
        results = await client.results("goes")
        await results.answered([first])
        (site.repository / "goes").rename(site.directory / "elsewhere")
        await worker.logged("part_with_model", "goes")
        await worker.logged("unload_model", "goes")
        control = await client.read(client.topics.control)
        await control.until(lambda read: [r.value for r in read.records if r.key == b"model/goes"][-1:] == [None])
        orphan, _ = await client.send("goes", rows_request(_ROW))
        assert (await results.answered([orphan]))[orphan].state is JobState.FAILED
        (site.directory / "elsewhere").rename(site.repository / "goes")
        await worker.logged("add_model", "goes")
        again, _ = await client.send("goes", rows_request(_ROW))
        assert values_of((await results.answered([again]))[again]) == _ROW
    announced = [r.value is None for r in (control.records) if r.key == b"model/goes"]
    assert announced[:2] == [False, True]


async def test_a_pool_without_models_is_ready_and_serves_the_first_that_comes(site: Installation) -> None:
    site.repository.mkdir()
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.logged("find_no_model")
        site.add_device("first")
        await worker.logged("add_model", "first")
        await worker.ready()
        id_, _ = await client.send("first", rows_request(_ROW))
        outcome = (await (await client.results("first")).answered([id_]))[id_]
    assert values_of(outcome) == _ROW


async def test_a_preloaded_model_is_there_before_the_worker_is_ready(site: Installation) -> None:
    site.add_device("dev", load_ms=300)
    site.add_device("broken", load_ms=1)
    config = site.repository / "broken" / "config.pbtxt"
    config.write_text(config.read_text().replace('"1"', '"soon"'))
    async with site.worker(preload='["*"]') as worker:
        await worker.ready()
        assert worker.metric("tidegate_model_state", model="dev", tidegate_model_state="ready") == 1
        assert any("preload_failed" in line for line in worker.lines)


async def test_a_request_that_hangs_the_model_fails_alone_and_the_instance_is_replaced(site: Installation) -> None:
    site.add_device("dev", delay_us=100_000, hang_value=7, execution_timeout_ms=300)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        reply_to = await client.make_replies()
        rows = [rows_request(_ROW), rows_request(_HANGING), rows_request(_ROW)]
        sent = await client.send_many("dev", rows, reply_to=reply_to)
        outcomes = await (await client.read(reply_to.topic)).answered(id_ for id_, _ in sent)
        later, _ = await client.send("dev", rows_request(_ROW), reply_to=reply_to)
        after = (await (await client.read(reply_to.topic)).answered([later]))[later]
        assert worker.metric("tidegate_abandoned_instances_total") == 2
        assert worker.get("/health/live").status_code == 200
    states = [outcomes[id_].state for id_, _ in sent]
    assert states == [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    error = outcomes[sent[1][0]].error()
    assert error is not None
    assert "execution timeout" in error.message
    assert after.state is JobState.SUCCEEDED


async def test_a_worker_with_too_many_hanging_threads_is_not_live(site: Installation) -> None:
    site.add_device("dev", hang_value=7, execution_timeout_ms=100)
    async with client_of(site) as client, site.worker(max_stuck_threads=1) as worker:
        await worker.ready()
        id_, _ = await client.send("dev", rows_request(_HANGING))
        outcome = (await (await client.results("dev")).answered([id_]))[id_]
        assert worker.get("/health/live").status_code == 503
    assert outcome.state is JobState.FAILED


async def test_what_fails_in_passing_is_tried_again_and_answered_and_no_neighbour_is_a_culprit(
    site: Installation,
) -> None:
    site.add_device("dev", away_calls=2)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        sent = await client.send_many("dev", [rows_request(_ROW)] * 4)
        outcomes = await (await client.results("dev")).answered(id_ for id_, _ in sent)
        assert worker.metric("tidegate_retried_requests_total") >= 4
        assert not (await (await client.read(client.topics.dead("dev"))).everything()).records
    assert {outcome.state for outcome in outcomes.values()} == {JobState.SUCCEEDED}


async def test_what_fails_in_passing_for_ever_is_a_dead_letter_with_its_attempts(site: Installation) -> None:
    site.add_device("dev", away_calls=1000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        id_, _ = await client.send("dev", rows_request(_ROW))
        outcome = (await (await client.results("dev")).answered([id_]))[id_]
        dead = await (await client.read(client.topics.dead("dev"))).until(lambda read: bool(read.records))
    assert outcome.state is JobState.FAILED
    assert dict(dead.records[0].headers)["tidegate-dead-attempts"] == b"5"


async def test_a_batch_without_memory_is_halved_and_every_request_answered(site: Installation) -> None:
    site.add_device("dev", delay_us=200_000, memory_rows=3)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        sent = await client.send_many("dev", [rows_request(_ROW)] * 16)
        outcomes = await (await client.results("dev")).answered(id_ for id_, _ in sent)
        again = await client.send_many("dev", [rows_request(_ROW)] * 16)
        runs = worker.metric("tidegate_bisection_runs_total")
        await (await client.results("dev")).answered(id_ for id_, _ in again)
        assert worker.metric("tidegate_bisection_runs_total") == runs  # the ceiling is remembered
    assert {outcome.state for outcome in outcomes.values()} == {JobState.SUCCEEDED}


async def test_a_model_that_does_not_load_answers_who_cannot_wait_and_serves_who_can_once_it_is_corrected(
    site: Installation,
) -> None:
    site.add_device("dev", load_ms=1)
    config = site.repository / "dev" / "config.pbtxt"
    good = config.read_text()
    config.write_text(good.replace('"1"', '"soon"'))
    async with client_of(site) as client, site.worker(repository_poll_s=0.1) as worker:
        await worker.ready()
        later = Deadline.after(30_000, now_ms=time.time_ns() // 1_000_000)
        endless, _ = await client.send("dev", rows_request(_ROW))
        patient, _ = await client.send("dev", rows_request(_ROW), deadline=later)
        outcomes = await (await client.results("dev")).answered([endless])
        config.write_text(good)
        served = (await (await client.results("dev")).answered([patient]))[patient]
    error = outcomes[endless].error()
    assert error is not None
    assert error.code is ErrorCode.MODEL_LOAD_FAILED
    assert served.state is JobState.SUCCEEDED


async def test_a_deadline_out_of_reach_is_refused_early_once_durations_are_known_and_is_no_dead_letter(
    site: Installation,
) -> None:
    site.add_device("dev", execute_base_ms=1000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        results = await client.results("dev")
        for _ in range(3):
            learnt, _ = await client.send("dev", rows_request(_ROW))
            await results.answered([learnt])
        soon = Deadline.after(800, now_ms=time.time_ns() // 1_000_000)
        hopeless, _ = await client.send("dev", rows_request(_ROW), deadline=soon)
        outcome = (await results.answered([hopeless]))[hopeless]
        assert worker.metric("tidegate_refused_requests_total", reason="hopeless") == 1
        assert not (await (await client.dead("dev")).everything()).records
    error = outcome.error()
    assert error is not None
    assert (outcome.state, outcome.started_ms, error.code) == (JobState.EXPIRED, 0, ErrorCode.OVERLOADED)


async def test_answers_keep_the_order_of_arrival_where_the_model_asks_for_it(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=1, execute_row_ms=0)
    config = site.repository / "dev" / "config.pbtxt"
    text = config.read_text().replace("dynamic_batching {", "dynamic_batching { preserve_ordering: true")
    config.write_text(text + "\ninstance_group { count: 3 kind: KIND_CPU }\n")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        sent = await client.send_many("dev", [rows_request([float(number)] * 4) for number in range(60)])
        results = await client.results("dev")
        await results.answered(id_ for id_, _ in sent)
    assert [id_ for id_ in results.outcomes] == [id_ for id_, _ in sent]


async def test_a_load_is_told_on_the_control_topic_from_its_beginning_to_its_end(site: Installation) -> None:
    site.add_device("dev", load_ms=1500)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        await client.send("dev", rows_request(_ROW))
        control = await client.read(client.topics.control)
        told = await control.until(lambda read: len(_loads(read)) >= 2 and _loads(read)[-1] is None)
    assert _loads(told)[0] is not None


def _loads(read: Read) -> list[bytes | None]:
    return [record.value for record in read.records if record.key == loading_key("dev")]
