"""When requests run: their three clocks, their priorities, and what rides together, through a real worker."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from local.kafka import LocalKafka
from schemas.deadline import Deadline
from schemas.errors import ErrorCode
from schemas.outcome import JobState, Outcome
from schemas.progress import Progress
from schemas.response import Timings
from tests.integration.topic_client import TopicClient, headers_of, response_of, rows_request, values_of
from tests.integration.worker_process import Installation

pytestmark = pytest.mark.kafka

_NO_DELAY = "dynamic_batching { max_queue_delay_microseconds: 0 }\n"
_QUEUE_POLICY = "dynamic_batching {{ priority_levels: 2 default_priority_level: 2 {more} }}\n"


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


def after(budget_ms: int) -> Deadline:
    return Deadline.after(budget_ms, now_ms=time.time_ns() // 1_000_000)


def code_of(outcome: Outcome) -> ErrorCode | None:
    error = outcome.error()
    return None if error is None else error.code


def add_to_config(site: Installation, model: str, text: str, *, instead_of: str = "") -> None:
    path = site.repository / model / "config.pbtxt"
    config = path.read_text()
    assert instead_of in config
    path.write_text(config.replace(instead_of, text) if instead_of else config + text)


async def test_a_request_that_runs_too_long_is_answered_alone_and_its_neighbour_as_usual(site: Installation) -> None:
    site.add_device("dev", max_batch_size=2, delay_us=60_000_000, execute_base_ms=2500)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        hasty, _ = await client.send("dev", rows_request([1.0]), execution_timeout_ms=400)
        patient, _ = await client.send("dev", rows_request([2.0]), execution_timeout_ms=60_000)
        results = await client.results("dev")
        outcomes = await results.answered([hasty, patient])
        dead = await (await client.dead("dev")).until(lambda read: bool(read.records))
        await client.committed("dev", Progress(2, 2))
        assert {len(told) for told in (await results.everything()).outcomes.values()} == {1}
        assert worker.metric("tidegate_abandoned_instances_total") == 0
    assert (outcomes[hasty].state, code_of(outcomes[hasty])) == (JobState.FAILED, ErrorCode.EXECUTION_TIMEOUT)
    assert outcomes[hasty].started_ms > 0
    assert 300 < outcomes[hasty].finished_ms - outcomes[hasty].started_ms < 2000
    assert values_of(outcomes[patient]) == [2]
    assert outcomes[patient].finished_ms > outcomes[hasty].finished_ms + 500
    assert headers_of(dead.records[0])["tidegate-dead-code"] == b"execution_timeout"


async def test_the_time_to_start_neither_refuses_early_nor_shortens_a_batch_and_a_deadline_does(
    site: Installation,
) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=500)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        results = await client.results("dev")
        for value in range(4):  # until it is known how long a batch takes
            id_, _ = await client.send("dev", rows_request([float(value)]))
            await results.answered([id_])
        too_long, _ = await client.send("dev", rows_request([7.0]), deadline=after(300))
        outcome = (await results.answered([too_long]))[too_long]
        assert (outcome.state, code_of(outcome)) == (JobState.EXPIRED, ErrorCode.OVERLOADED)
        in_time, _ = await client.send("dev", rows_request([8.0]), start_by=after(300))
        assert values_of((await results.answered([in_time]))[in_time]) == [8]
        running, _ = await client.send("dev", rows_request([9.0]))
        await client.committed("dev", Progress(6, 7))
        late, _ = await client.send("dev", rows_request([10.0]), start_by=after(150), deadline=after(60_000))
        outcomes = await results.answered([running, late])
        assert not (await (await client.dead("dev")).everything()).records
    assert values_of(outcomes[running]) == [9]
    assert (outcomes[late].state, outcomes[late].started_ms) == (JobState.EXPIRED, 0)
    assert code_of(outcomes[late]) is ErrorCode.DEADLINE_EXCEEDED
    assert "time to start" in str(outcomes[late].error())


async def test_a_batch_leaves_before_its_delay_for_a_request_that_must_begin(site: Installation) -> None:
    site.add_device("dev", delay_us=30_000_000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        warm, _ = await client.send("dev", rows_request([0.0]), start_by=after(2000))
        results = await client.results("dev")
        await results.answered([warm], within_s=10)
        ids = [(await client.send("dev", rows_request([1.0])))[0]]
        ids.append((await client.send("dev", rows_request([2.0]), start_by=after(1000)))[0])
        outcomes = await results.answered(ids, within_s=10)
    assert [values_of(outcomes[id_]) for id_ in ids] == [[1], [2]]


async def test_a_plain_producers_parameters_are_clocks_that_count_from_the_records_arrival(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=1000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()

        async def send(**parameters: object) -> str:
            tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
            return str(await client.send_json("dev", {"inputs": [tensor], "parameters": parameters}))

        ran_too_long = await send(execution_timeout_ms=300)
        await client.committed("dev", Progress(1, 1))  # answered while it still runs
        waiting = await send()
        unstarted = await send(timeout=200_000)
        expired = await send(deadline_ms=200)
        strange = await send(timeout="soon", deadline_ms=-1, execution_timeout_ms=True)
        outcomes = await (await client.results("dev")).answered([ran_too_long, waiting, unstarted, expired, strange])
    assert code_of(outcomes[ran_too_long]) is ErrorCode.EXECUTION_TIMEOUT
    assert "time to start" in str(outcomes[unstarted].error())
    assert outcomes[expired].state is JobState.EXPIRED
    assert {outcomes[waiting].state, outcomes[strange].state} == {JobState.SUCCEEDED}


async def test_a_higher_priority_overtakes_what_waits(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=300)
    add_to_config(site, "dev", _QUEUE_POLICY.format(more=""), instead_of=_NO_DELAY)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        warm, _ = await client.send("dev", rows_request([0.0]))
        results = await client.results("dev")
        await results.answered([warm])
        low = [(await client.send("dev", rows_request([1.0]), priority=2))[0] for _ in range(4)]
        await client.committed("dev", Progress(1, 3))
        high, _ = await client.send("dev", rows_request([2.0]), priority=1)
        outcomes = await results.answered([*low, high])
    order = sorted(outcomes, key=lambda id_: outcomes[id_].finished_ms)
    assert order.index(high) < order.index(low[3])
    assert order.index(low[0]) < order.index(high)


async def test_what_the_queue_policy_refuses_may_be_tried_again_and_is_no_dead_letter(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=1500)
    policy = "default_queue_policy { default_timeout_microseconds: 300000 max_queue_size: 2 }"
    add_to_config(site, "dev", _QUEUE_POLICY.format(more=policy), instead_of=_NO_DELAY)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        first, _ = await client.send("dev", rows_request([1.0]))
        await client.committed("dev", Progress(0, 1))
        sent = await client.send_many("dev", [rows_request([2.0])] * 5)
        outcomes = await (await client.results("dev")).answered([first, *(id_ for id_, _ in sent)])
        reasons = {
            reason: worker.metric("tidegate_refused_requests_total", reason=reason)
            for reason in ("timed_out", "queue_full")
        }
        assert not (await (await client.dead("dev")).everything()).records
    refused = [outcomes[id_] for id_, _ in sent if outcomes[id_].state is JobState.EXPIRED]
    assert {code_of(outcome) for outcome in refused} == {ErrorCode.OVERLOADED}
    assert min(reasons.values()) >= 1
    assert sum(reasons.values()) == len(refused)


async def test_requests_of_other_lengths_ride_together_padded_and_get_their_own_back(site: Installation) -> None:
    site.add_device("dev", max_batch_size=8, delay_us=60_000_000)
    for name, value in {"buckets": "4,8", "inputs": "INPUT0", "outputs": "OUTPUT0"}.items():
        add_to_config(site, "dev", f'parameters {{ key: "padding_{name}" value {{ string_value: "{value}" }} }}\n')
    rows = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0]]
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        sent = await client.send_many("dev", [rows_request(row) for row in [*rows, *rows]])
        longer, _ = await client.send("dev", rows_request([1.0] * 5), start_by=after(500))
        outcomes = await (await client.results("dev")).answered([*(id_ for id_, _ in sent), longer])
    for (id_, _), row in zip(sent, [*rows, *rows], strict=True):
        assert values_of(outcomes[id_]) == row
        assert msgspec.convert(response_of(outcomes[id_]).parameters, Timings).batch_requests == 8
    assert values_of(outcomes[longer]) == [1.0] * 5
