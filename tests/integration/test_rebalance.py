"""A pool's partitions are dealt out anew: what stays is read on, what moves moves whole, nothing is run twice.

Some of it with intakes in this process, where every step can be held up; the rest with real workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.kafka_connection import KafkaConnection
from schemas.progress import Progress
from tests.integration.topic_client import TopicClient, rows_request, values_of
from tests.integration.worker_process import Installation
from workers.delivery import Delivery
from workers.group_intake import GroupIntake
from workers.holdings import Key
from workers.intake import Member

pytestmark = pytest.mark.kafka

_PATIENCE_S = 30.0
_SESSION_TIMEOUT_S = 6.0  # the least that a broker allows


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


@pytest.fixture
async def client(site: Installation) -> AsyncIterator[TopicClient]:
    async with TopicClient(site.bootstrap, site.prefix) as client:
        yield client


def done(offset: int) -> Progress:
    return Progress(offset, offset)


def numbers(deliveries: Collection[Delivery]) -> set[int]:
    return {delivery.partition.number for delivery in deliveries}


@asynccontextmanager
async def intake_of(
    client: TopicClient, site: Installation, *models: str, part_timeout_s: float = 5.0
) -> AsyncIterator[GroupIntake]:
    """A member of the default pool's group, open; closed at the end."""
    intake = GroupIntake(
        kafka=KafkaConnection(bootstrap=site.bootstrap),
        group=client.topics.group("default"),
        topics=[client.topics.infer(model) for model in models or ("dev",)],
        part_timeout_s=part_timeout_s,
    )
    await intake.open()
    try:
        yield intake
    finally:
        await intake.close()


async def take(intake: GroupIntake, count: int) -> list[Delivery]:
    """Fetch until so many records have come."""
    taken: list[Delivery] = []
    async with asyncio.timeout(_PATIENCE_S):
        while len(taken) < count:
            taken += await intake.fetch()
    return taken


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        while not done():  # noqa: ASYNC110  # of being given up nobody tells; this looks again
            await asyncio.sleep(0.01)


async def send_round(client: TopicClient, count: int, *, partitions: int = 4) -> list[str]:
    requests = [rows_request([float(number)]) for number in range(count)]
    return [id_ for id_, _ in await client.send_many("dev", requests, partitions=partitions)]


async def test_what_stays_is_not_read_again_and_what_moves_is_read_by_its_new_owner(
    client: TopicClient, site: Installation
) -> None:
    await client.provision("dev", partitions=4)
    await send_round(client, 40)
    async with intake_of(client, site) as first:
        taken = await take(first, 40)
        async with intake_of(client, site) as second:
            moved = await take(second, 20)
            assert len(moved) == 20
            assert len(numbers(moved)) == 2
            await send_round(client, 4)
            later = await take(first, 2)
            assert len(later) == 2
            assert numbers(later) == set(range(4)) - numbers(moved)
            # What it has taken of all four it acknowledges now; the two that it has given up come to no account.
            for delivery in [*taken, *later]:
                first.acknowledge(delivery)
            await first.commit()
            await client.committed("dev", *[done(0 if number in numbers(moved) else 11) for number in range(4)])
            for delivery in [*moved, *await take(second, 2)]:
                second.acknowledge(delivery)
            await second.commit()
            await client.committed("dev", *[done(11)] * 4)


async def test_a_topic_that_is_paused_stays_so_when_partitions_come_and_go(
    client: TopicClient, site: Installation
) -> None:
    await client.provision("dev", "other", partitions=4)
    async with intake_of(client, site, "dev", "other") as first:
        await asyncio.wait_for(first.assigned.wait(), _PATIENCE_S)
        first.pause(client.topics.infer("dev"))
        async with intake_of(client, site, "dev", "other") as second:
            await asyncio.wait_for(second.assigned.wait(), _PATIENCE_S)
        await send_round(client, 1)
        for number in range(4):
            await client.send("other", rows_request([1.0]), partition=number)
        assert {delivery.partition.topic for delivery in await take(first, 4)} == {client.topics.infer("other")}
        first.resume(client.topics.infer("dev"))
        assert {delivery.partition.topic for delivery in await take(first, 1)} == {client.topics.infer("dev")}


async def test_a_partition_moves_only_when_its_running_work_is_committed(
    client: TopicClient, site: Installation
) -> None:
    await client.provision("dev", partitions=2)
    await send_round(client, 4, partitions=2)
    async with intake_of(client, site) as first:
        taken = await take(first, 4)
        for delivery in taken:
            first.start(delivery)
        async with intake_of(client, site, part_timeout_s=_PATIENCE_S) as second:
            await until(lambda: any(delivery.partition.lost for delivery in taken))
            await asyncio.wait_for(second.assigned.wait(), _PATIENCE_S)
            for delivery in taken:
                first.acknowledge(delivery)
            await send_round(client, 2, partitions=2)
            moved = await take(second, 1)
            assert [delivery.offset for delivery in moved] == [2]
            assert (await client.progress("dev", partitions=2))[moved[0].partition.number] == done(2)


async def test_work_that_takes_too_long_does_not_keep_a_partition_and_is_not_committed(
    client: TopicClient, site: Installation
) -> None:
    await client.provision("dev", partitions=2)
    await send_round(client, 4, partitions=2)
    async with intake_of(client, site, part_timeout_s=0.1) as first:
        taken = await take(first, 4)
        first.start(taken[0])
        first.start(next(delivery for delivery in taken if delivery.partition is not taken[0].partition))
        async with intake_of(client, site) as second:
            moved = await take(second, 2)
            assert [delivery.offset for delivery in moved] == [0, 1]
            for delivery in taken:
                first.acknowledge(delivery)
            await first.commit()
            [gone] = numbers(moved)
            await client.committed("dev", *[Progress(0, 1) if number == gone else done(2) for number in range(2)])


async def test_reading_and_commits_go_on_while_the_group_waits_for_a_worker_that_does_not_answer(
    client: TopicClient, site: Installation
) -> None:
    site.add_device("dev")
    await client.provision("dev", partitions=4)
    async with site.worker(partitions=4) as silent:
        await silent.ready()
        async with intake_of(client, site) as first:
            await silent.logged("assign_partitions", '"partitions": 2')
            await send_round(client, 4)
            kept = numbers(await take(first, 2))
            os.kill(silent.pid, signal.SIGSTOP)
            async with intake_of(client, site) as third:
                await until(lambda: not first.assigned.is_set())  # the round has begun, and waits for the silent one
                await send_round(client, 40)
                taken = await take(first, 20)
                assert numbers(taken) == kept
                for delivery in taken:
                    first.acknowledge(delivery)
                await first.commit()
                progress = await client.progress("dev", partitions=4)
                assert all(Progress(0, 0, ((1, 11),)) == progress[number] for number in kept)
                # Nor does it keep anybody who wants to leave.
                await third.close()
                assert not first.assigned.is_set()
            os.kill(silent.pid, signal.SIGCONT)


async def test_a_commit_of_a_former_generation_changes_nothing(client: TopicClient, site: Installation) -> None:
    class Rounds:
        def __init__(self) -> None:
            self.begun = 0
            self.assigned = asyncio.Event()

        def claim(self, *, is_member: bool) -> Collection[Key]:
            self.begun += 1
            return []

        def assign(self, assigned: set[Key]) -> None:
            self.assigned.set()

    await client.provision("dev")
    topic, rounds = client.topics.infer("dev"), Rounds()
    member = Member(
        kafka=KafkaConnection(bootstrap=site.bootstrap),
        group=client.topics.group("default"),
        topics=[topic],
        session_timeout_s=_SESSION_TIMEOUT_S,
    )
    await member.open(rounds)
    try:
        await asyncio.wait_for(rounds.assigned.wait(), _PATIENCE_S)
        coordinator = member._coordinator
        assert coordinator is not None
        coordinator.generation -= 1  # what a commit meets that was sent just before a round has ended
        refused = await member.commit({(topic, 0): done(0)})
        coordinator.generation += 1
        assert not refused
        assert await member.commit({(topic, 0): done(0)})
        assert rounds.begun == 1
    finally:
        await member.close()


async def test_a_worker_that_was_away_for_too_long_gives_up_what_it_held_and_joins_anew(
    client: TopicClient, site: Installation
) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=40)
    async with site.worker(partitions=4) as away, site.worker(partitions=4) as other:
        await away.ready()
        await other.ready()
        await away.logged("assign_partitions", '"partitions": 2')
        results = await client.results("dev")
        ids = await send_round(client, 100)
        await results.until(lambda read: len(read.outcomes) >= 20)
        os.kill(away.pid, signal.SIGSTOP)
        await other.logged("assign_partitions", '"partitions": 4')
        await results.answered(ids)
        os.kill(away.pid, signal.SIGCONT)
        await away.logged("lose_partitions")
        more = await send_round(client, 100)
        outcomes = await results.answered([*ids, *more])
        await client.committed("dev", *[done(50)] * 4)
        away.terminate()
        assert await away.ended() == 0
    assert sorted(values_of(outcomes[id_])[0] for id_ in ids) == [float(number) for number in range(100)]


async def test_loads_and_batches_longer_than_a_session_cost_no_membership(
    client: TopicClient, site: Installation
) -> None:
    # The default session timeout is 10 s.
    site.add_device("dev", max_batch_size=1, execute_base_ms=11_000)
    site.add_device("heavy", load_ms=11_000)
    async with site.worker(max_queued_requests=1) as worker:
        await worker.ready()
        results, heavy = await client.results("dev"), await client.results("heavy")
        sent = await client.send_many("heavy", [rows_request([float(number)]) for number in range(4)])
        waiting = [id_ for id_, _ in sent]  # more than its queue takes: the topic is paused
        running, _ = await client.send("dev", rows_request([1.0]))
        await results.answered([running])
        await heavy.answered(waiting)
        assert sum('"assign_partitions"' in line for line in worker.lines) == 1
        assert worker.get("/health/ready").status_code == 200


async def test_a_worker_that_joins_mid_batch_gets_nothing_that_runs_elsewhere(
    client: TopicClient, site: Installation
) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=1500)
    async with site.worker(partitions=2) as first:
        await first.ready()
        results = await client.results("dev")
        # Batches of one partition each: those queued of the one that moves empty, and must neither run nor end it.
        ids = [(await client.send("dev", rows_request([float(n)]), partition=n // 20))[0] for n in range(40)]
        await results.until(lambda read: len(read.outcomes) >= 4)
        async with site.worker(partitions=2) as second:
            await second.logged("assign_partitions", '"partitions": 1')
            outcomes = await results.answered(ids)
            await client.committed("dev", done(20), done(20))
            await results.everything()
            assert second.metric("tidegate_batch_rows_sum", model="dev") > 0
            first.terminate()
            assert await first.ended() == 0
    assert [values_of(outcomes[id_]) for id_ in ids] == [[float(n)] for n in range(40)]
    assert Counter(map(len, results.outcomes.values())) == {1: 40}


async def test_of_three_workers_one_is_killed_and_the_others_go_on_as_if_nothing_had_been(
    client: TopicClient, site: Installation
) -> None:
    site.add_device("dev", max_batch_size=4, execute_base_ms=40)
    async with (
        site.worker(partitions=6) as killed,
        site.worker(partitions=6) as second,
        site.worker(partitions=6) as third,
    ):
        for worker in (killed, second, third):
            await worker.logged("assign_partitions", '"partitions": 2')
        results = await client.results("dev")
        ids = await send_round(client, 240, partitions=6)
        await results.until(lambda read: len(read.outcomes) >= 60)
        killed.kill()
        # The other four partitions are answered for before the group has missed it.
        rounds = [sum('"assign_partitions"' in line for line in worker.lines) for worker in (second, third)]
        await results.until(lambda read: len(read.outcomes) >= 160)
        ids += await send_round(client, 24, partitions=6)
        await results.until(lambda read: len(read.outcomes) >= 160 + 16)
        assert rounds == [sum('"assign_partitions"' in line for line in worker.lines) for worker in (second, third)]
        outcomes = await results.answered(ids)
        await client.committed("dev", *[done(44)] * 6)
        await results.everything()
    values = [values_of(outcomes[id_])[0] for id_ in ids]
    assert values == [float(n) for n in range(240)] + [float(n) for n in range(24)]
    # At most what it ran, and what it had answered and not yet committed: two batches each, with 50 ms between commits.
    repeated = sum(len(told) - 1 for told in results.outcomes.values())
    assert repeated <= 4 * 4
