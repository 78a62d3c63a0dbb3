"""A pool changes under load: workers are killed, leave and join, the broker goes and comes, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.outcome import JobState, decode_stored
from schemas.progress import Progress
from store import open_store
from tests.integration.topic_client import TopicClient, rows_request, values_of
from tests.integration.worker_process import Installation

pytestmark = pytest.mark.kafka


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


@pytest.fixture
def own_kafka() -> Iterator[LocalKafka]:
    """A broker that the test may stop."""
    with LocalKafka() as broker:
        yield broker


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


def done(offset: int) -> Progress:
    """Everything below `offset` is done, and nothing else is known."""
    return Progress(offset, offset)


async def test_a_worker_killed_mid_batch_leaves_one_outcome_for_every_request(site: Installation) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=1500)
    store = open_store(str(site.store))
    async with client_of(site) as client:
        await client.provision("dev")
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(12)], stored=True)
        results = await client.results("dev")
        async with site.worker() as first:
            await results.until(lambda read: len(read.outcomes) >= 4)  # the second batch runs now
            first.kill()
        site.add_device("dev", max_batch_size=4)
        async with site.worker():
            await results.answered(id_ for id_, _ in sent)
            await client.committed("dev", done(12))
        await results.everything()
        keys = {await client.outcome_key(origin): id_ for id_, origin in sent}
    stored = {info.key: decode_stored(store.get(info.key)) for info in store.list("outcomes")}
    assert {key: outcome.id for key, outcome in stored.items()} == keys
    for key, id_ in keys.items():
        assert stored[key].state is JobState.SUCCEEDED
        assert all(outcome == stored[key] for outcome in results.outcomes[id_])


async def test_a_restart_skips_what_was_done_out_of_order(site: Installation) -> None:
    # The first request waits for company of its shape; whole batches of the other shape overtake it.
    site.add_device("dev", max_batch_size=4, delay_us=60_000_000)
    async with client_of(site) as client:
        await client.provision("dev")
        waiting, _ = await client.send("dev", rows_request([1.0]))
        overtaking = await client.send_many("dev", [rows_request([2.0, float(n)]) for n in range(8)])
        results = await client.results("dev")
        async with site.worker() as first:
            await results.answered(id_ for id_, _ in overtaking)
            await client.committed("dev", Progress(0, 9, ((1, 9),)))
            first.kill()
        site.add_device("dev", max_batch_size=4)
        async with site.worker() as second:
            await results.answered([waiting])
            await client.committed("dev", done(9))
            assert second.metric("tidegate_batch_rows_sum", model="dev") == 1
        await results.everything()
    assert Counter(map(len, results.outcomes.values())) == {1: 9}


async def test_a_broker_restarted_under_load_loses_nothing(own_kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    site = Installation(own_kafka.bootstrap, prefix, tmp_path)
    site.add_device("dev", execute_base_ms=20)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        results = await client.results("dev")
        ids = [(await client.send("dev", rows_request([float(n)])))[0] for n in range(20)]
        restart = asyncio.create_task(asyncio.to_thread(own_kafka.restart))
        while not restart.done():
            sent = await client.send_many("dev", [rows_request([1.0])] * 5)
            ids += [id_ for id_, _ in sent]
        await restart
        sent = await client.send_many("dev", [rows_request([2.0])] * 20)
        ids += [id_ for id_, _ in sent]
        outcomes = await results.answered(ids, within_s=60)
        await client.committed("dev", done(len(ids)))
        await results.everything()
        worker.terminate()
        assert await worker.ended() == 0
    assert {outcome.state for outcome in outcomes.values()} == {JobState.SUCCEEDED}
    assert Counter(map(len, results.outcomes.values())) == {1: len(ids)}


async def test_two_workers_share_a_pool_and_one_leaves_under_load(site: Installation) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=40)
    async with client_of(site) as client, site.worker(partitions=4) as first, site.worker(partitions=4) as second:
        await first.ready()
        await second.ready()
        await first.logged("assign_partitions", '"partitions": 2')
        await second.logged("assign_partitions", '"partitions": 2')
        results = await client.results("dev")
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(300)], partitions=4)
        await results.until(lambda read: len(read.outcomes) >= 30)
        first.terminate()
        assert await first.ended() == 0
        outcomes = await results.answered(id_ for id_, _ in sent)
        await client.committed("dev", *[done(75)] * 4)
        await results.everything()
        rows_run = second.metric("tidegate_batch_rows_sum", model="dev")
    assert [values_of(outcomes[id_]) for id_, _ in sent] == [[float(n)] for n in range(300)]
    assert 0 < rows_run < 300
    # What the leaving worker had taken it has finished and committed: nothing is run again.
    assert Counter(map(len, results.outcomes.values())) == {1: 300}


async def test_a_worker_that_joins_under_load_repeats_and_loses_nothing(site: Installation) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=40)
    async with client_of(site) as client, site.worker(partitions=4) as first:
        await first.ready()
        results = await client.results("dev")
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(300)], partitions=4)
        await results.until(lambda read: len(read.outcomes) >= 20)
        async with site.worker(partitions=4) as second:
            outcomes = await results.answered(id_ for id_, _ in sent)
            await second.ready()
            await client.committed("dev", *[done(75)] * 4)
        await results.everything()
    assert [values_of(outcomes[id_]) for id_, _ in sent] == [[float(n)] for n in range(300)]
    assert Counter(map(len, results.outcomes.values())) == {1: 300}
