"""Replies on a broker of this file: however claims and commits interleave, each gateway ends with a partition of its
own, and no reply is passed by a commit before it is answered or stored.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.kafka_client import Commit
from gateway.metrics import Metrics
from gateway.replies import Replies
from schemas.topics import Topics

TOPICS = Topics("t")
TOPIC = TOPICS.replies


class Reply(msgspec.Struct, frozen=True):
    """A record of the replies topic."""

    offset: int
    headers: list[tuple[str, bytes]]


class Log:
    """The replies topic and its group. Each call lets others go first, as often as the draw says."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._commits: dict[int, Commit] = {}
        self.records: dict[int, list[Reply]] = defaultdict(list)
        self.news = asyncio.Event()

    async def wander(self) -> None:
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)

    def append(self, partition: int, id_: str) -> None:
        log = self.records[partition]
        log.append(Reply(len(log), [("ce_id", id_.encode())]))
        self.news.set()
        self.news = asyncio.Event()

    async def commits(self, group: str, topics: Mapping[str, int]) -> dict[tuple[str, int], Commit]:
        await self.wander()
        found = {(TOPIC, partition): commit for partition, commit in self._commits.items()}
        await self.wander()
        return found

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        await self.wander()
        return {partition: len(self.records[partition]) for partition in partitions}

    def follow(self, topic: str, positions: Mapping[int, int], *, group: str) -> Follower:
        return Follower(self, positions)

    async def commit(self, partition: int, commit: Commit) -> None:
        await self.wander()
        self._commits[partition] = commit
        await self.wander()

    def committed(self, partition: int) -> int:
        return self._commits[partition].offset


class Follower:
    """A reader of the log."""

    def __init__(self, log: Log, positions: Mapping[int, int]) -> None:
        self._log = log
        self.positions = dict(positions)
        self.commit = log.commit

    async def run(
        self,
        take: Callable[[Sequence[Reply]], None],
        *,
        on_poll: Callable[[], None],
        before_poll: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        ((partition, _),) = self.positions.items()
        while True:
            if before_poll is not None:
                await before_poll()
            news = self._log.news
            records = self._log.records[partition][self.positions[partition] :]
            if records:
                take(records)
                self.positions[partition] += len(records)
            on_poll()
            await (self._log.wander() if records else news.wait())


class Store:
    """Keeps ids of replies, at once or once it is let; so many may wait for it."""

    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.is_away = False
        self.limit = 1_000_000
        self.most = 0
        self._waiting: list[tuple[str, Callable[[], None]]] = []

    def keep_record(self, record: Reply, *, on_kept: Callable[[], None] = lambda: None) -> None:
        self._waiting.append((dict(record.headers)["ce_id"].decode(), on_kept))
        self.most = max(self.most, len(self._waiting))
        if not self.is_away:
            self.come_back()

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self.limit

    async def room(self) -> None:
        while not self.has_room:  # noqa: ASYNC110  # of a test: another's turn is all that it waits for
            await asyncio.sleep(0)

    def come_back(self) -> None:
        self.is_away = False
        for id_, on_kept in self._waiting:
            self.kept.add(id_)
            on_kept()
        self._waiting = []


class Gateway:
    """Replies with its parts; `waiting` are the ids for which somebody waits."""

    def __init__(self, log: Log, name: str, rng: random.Random) -> None:
        self.name = name
        self.store = Store()
        self.waiting: set[str] = set()
        self.answered: set[str] = set()
        parts: Any = {"broker": log, "outcomes": self.store, "metrics": Metrics()}
        self.replies = Replies(
            **parts, topics=TOPICS, gateway_id=name, answer=self.answer, longest_wait_s=3600, rng=rng
        )

    def answer(self, id_: bytes, record: object) -> bool:
        if id_.decode() not in self.waiting:
            return False
        self.waiting.discard(id_.decode())
        self.answered.add(id_.decode())
        return True

    async def start(self, partitions: int, tasks: list[asyncio.Task[None]]) -> None:
        await self.replies.claim(partitions)
        reading = asyncio.Event()
        tasks.append(asyncio.ensure_future(self.replies.read(on_poll=reading.set)))
        await reading.wait()
        await self.replies.commit()
        await self.replies.hold()


async def together(rng: random.Random, gateways: int, partitions: int) -> tuple[Log, list[Gateway], list[Any]]:
    log, tasks = Log(rng), list[Any]()
    all_ = [Gateway(log, f"g{index}", rng) for index in range(gateways)]
    await asyncio.gather(*(gateway.start(partitions, tasks) for gateway in all_))
    for _ in range(gateways + 1):  # as the timer does
        await asyncio.gather(*(gateway.replies.hold() for gateway in all_))
    return log, all_, tasks


async def end(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32).map(random.Random), st.integers(1, 5), st.integers(0, 3))
def test_gateways_that_start_in_the_same_moment_end_with_a_partition_each(
    rng: random.Random, gateways: int, spare: int
) -> None:
    async def run() -> None:
        _, all_, tasks = await together(rng, gateways, gateways + spare)
        for _ in range(10):  # each round at least one of two that share moves
            await asyncio.gather(*(gateway.replies.hold() for gateway in all_))
        assert len({gateway.replies.partition for gateway in all_}) == gateways
        await end(tasks)

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32).map(random.Random), st.integers(2, 4), st.integers(1, 4), st.integers(1, 20))
def test_no_reply_is_passed_before_it_is_answered_or_stored(
    rng: random.Random, gateways: int, partitions: int, count: int
) -> None:
    """Also where gateways share a partition, and whichever of them reads first."""

    async def run() -> None:
        log, all_, tasks = await together(rng, gateways, partitions)
        sent: dict[int, list[str]] = defaultdict(list)
        for number in range(count):
            gateway = rng.choice(all_)
            gateway.store.is_away = rng.random() < 0.3
            id_ = f"{gateway.name}-{number}"
            if rng.random() < 0.6:
                gateway.waiting.add(id_)
            partition = gateway.replies.partition
            sent[partition].append(id_)
            log.append(partition, id_)
            if rng.random() < 0.3:
                await rng.choice(all_).replies.hold()
        await asyncio.gather(*(gateway.replies.hold() for gateway in all_))
        for partition, ids in sent.items():
            done = set[str]().union(*(gateway.answered | gateway.store.kept for gateway in all_))
            assert set(ids[: log.committed(partition)]) <= done
        for gateway in all_:
            gateway.store.come_back()
        for _ in range(50):
            await asyncio.sleep(0)
        done = set[str]().union(*(gateway.answered | gateway.store.kept for gateway in all_))
        assert {id_ for ids in sent.values() for id_ in ids} <= done
        await end(tasks)

    asyncio.run(run())


async def test_a_gateway_that_lost_its_partition_still_answers_who_waits_there() -> None:
    log, (gateway,), tasks = await together(random.Random(1), 1, 2)
    moved: list[int] = []
    gateway.replies.on_moved = moved.append
    old = gateway.replies.partition
    gateway.waiting.add("g0-1")
    thief = Gateway(log, "thief", random.Random(2))
    await log.commit(old, Commit(0, f"thief/{10**15}"))
    await gateway.replies.hold()
    assert moved == []  # of a time that is not ours: nobody holds it
    await log.commit(old, Commit(0, f"thief/{time.time_ns() // 1_000_000}"))
    await gateway.replies.hold()
    assert moved == [1 - old] == [gateway.replies.partition]
    log.append(old, "g0-1")
    log.append(old, "thief-1")
    for _ in range(50):
        await asyncio.sleep(0)
    assert gateway.answered == {"g0-1"}
    assert gateway.store.kept == set()  # the thief's is the thief's
    assert thief.store.kept == set()
    await end(tasks)


@pytest.mark.parametrize("release", [True, False])
async def test_what_is_released_is_not_held_again(release: bool) -> None:
    log, (gateway,), tasks = await together(random.Random(1), 1, 2)
    await gateway.replies.commit(release=release)
    await gateway.replies.hold()
    commits = await log.commits("g", {TOPIC: 2})
    assert (commits[TOPIC, gateway.replies.partition].metadata == "") == release
    await end(tasks)


async def test_what_the_store_has_no_room_for_stays_in_the_topic_and_is_stored_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.replies._ADOPT_EVERY_S", 0)
    log, (gateway,), tasks = await together(random.Random(1), 1, 1)
    tasks.append(asyncio.ensure_future(gateway.replies.adopt_regularly()))
    gateway.store.is_away, gateway.store.limit = True, 3
    gateway.waiting = {"g0-4", "g0-8"}
    for number in range(12):
        log.append(0, f"g0-{number}")
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    assert gateway.answered == {"g0-4", "g0-8"}  # those who wait are served all the same
    await gateway.replies.hold()
    assert log.committed(0) == 0
    assert gateway.store.kept == set()
    gateway.store.come_back()
    async with asyncio.timeout(5):
        while log.committed(0) < 12:
            await gateway.replies.hold()
            await asyncio.sleep(0)
    assert gateway.store.kept | gateway.answered == {f"g0-{number}" for number in range(12)}
    await end(tasks)


def test_adopting_a_part_leaves_what_was_added_meanwhile() -> None:
    async def run() -> None:
        _, (gateway,), tasks = await together(random.Random(1), 1, 1)
        reader = gateway.replies._reader
        reader.orphans = (3, 9)
        left = []
        for end_ in (7, 9, 9):
            reader.adopted(end_)
            left.append(reader.orphans)
        assert left == [(7, 9), None, None]
        await end(tasks)

    asyncio.run(run())
