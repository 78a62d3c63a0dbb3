"""A worker stops: what runs is finished, what is done is committed, what is not is left for the next owner."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.outcome import JobState
from schemas.progress import Progress
from tests.integration.topic_client import TopicClient, rows_request, values_of
from tests.integration.worker_process import Installation

pytestmark = pytest.mark.kafka


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


async def test_sigterm_mid_batch_answers_what_was_taken_commits_and_leaves(site: Installation) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=400)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        assert await client.members() == 1
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(10)])
        results = await client.results("dev")
        await results.until(lambda read: len(read.outcomes) >= 1)  # the first batch is out, the second runs
        begun_s = time.monotonic()
        worker.terminate()
        await worker.logged("fetching stopped")
        assert worker.get("/health/ready").status_code == 503
        assert await worker.ended() == 0
        assert time.monotonic() - begun_s < 8
        outcomes = (await results.everything()).outcomes
        assert [values_of(outcomes[id_][0]) for id_, _ in sent] == [[float(n)] for n in range(10)]
        assert all(len(of_one) == 1 for of_one in outcomes.values())
        assert await client.progress("dev") == [Progress(10, 10)]
        assert await client.members() == 0


async def test_a_drain_cuts_what_is_queued_without_waiting_for_its_delay(site: Installation) -> None:
    site.add_device("dev", delay_us=60_000_000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        sent = await client.send_many("dev", [rows_request([1.0]), rows_request([2.0])])
        await worker.logged("load_model")
        await worker.measured(2, "tidegate_queued_rows")
        worker.terminate()
        assert await worker.ended(within_s=15) == 0
        outcomes = (await (await client.results("dev")).everything()).outcomes
        assert outcomes.keys() == {id_ for id_, _ in sent}


async def test_a_second_sigterm_gives_running_work_up_and_the_next_worker_does_it(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=6000)
    site.add_device("quick")
    async with client_of(site) as client:
        async with site.worker() as worker:
            await worker.ready()
            quick, _ = await client.send("quick", rows_request([1.0]))
            await (await client.results("quick")).answered([quick])
            id_, _ = await client.send("dev", rows_request([1.0]))
            await worker.logged("load_model", "dev")
            worker.terminate()
            await worker.logged("fetching stopped")
            begun_s = time.monotonic()
            worker.terminate()
            assert await worker.ended(within_s=20) == 0
            assert time.monotonic() - begun_s < 6.5
        assert await client.progress("quick") == [Progress(1, 1)]
        [progress] = await client.progress("dev")
        assert progress is not None
        assert progress.committed == 0
        site.add_device("dev", max_batch_size=1)
        async with site.worker():
            results = await client.results("dev")
            outcomes = await results.answered([id_])
        assert outcomes[id_].state is JobState.SUCCEEDED
        assert len((await results.everything()).records) == 1


async def test_a_spent_drain_deadline_leaves_the_rest_to_the_next_worker(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=700)
    async with client_of(site) as client:
        async with site.worker(drain_s=1) as worker:
            await worker.ready()
            sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(12)])
            results = await client.results("dev")
            await results.until(lambda read: len(read.outcomes) >= 1)
            worker.terminate()
            assert await worker.ended(within_s=15) == 0
        [progress] = await client.progress("dev")
        assert progress is not None
        assert progress.committed < 12
        site.add_device("dev", max_batch_size=1)
        async with site.worker():
            outcomes = await results.answered(id_ for id_, _ in sent)
        assert {outcome.state for outcome in outcomes.values()} == {JobState.SUCCEEDED}


async def test_a_worker_that_is_loading_a_model_stops_soon(site: Installation) -> None:
    site.add_device("dev", load_ms=25_000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        await client.send("dev", rows_request([1.0]))
        await worker.measured(1, "tidegate_queued_rows")
        worker.terminate()
        assert await worker.ended(within_s=12) == 0
        [progress] = await client.progress("dev")
        assert progress is not None
        assert progress.committed == 0
        assert not (await (await client.results("dev")).everything()).records


async def test_a_worker_stops_within_its_deadline_while_the_broker_is_down(prefix: str, tmp_path: Path) -> None:
    with LocalKafka() as broker:
        site = Installation(broker.bootstrap, prefix, tmp_path)
        site.add_device("dev")
        async with site.worker(drain_s=2, commit_interval_ms=60_000) as worker:
            await worker.ready()
            async with client_of(site) as client:
                id_, _ = await client.send("dev", rows_request([1.0]))
                await (await client.results("dev")).answered([id_])  # done, and not committed
            await asyncio.to_thread(broker.kill)
            worker.terminate()
            assert await worker.ended(within_s=15) == 0


async def test_a_worker_told_to_stop_before_any_broker_answers_ends(site: Installation) -> None:
    site.add_device("dev")
    async with site.worker(kafka_bootstrap="127.0.0.1:1") as worker:
        await worker.logged("wait_to_start")
        worker.terminate()
        assert await worker.ended(within_s=15) == 0
