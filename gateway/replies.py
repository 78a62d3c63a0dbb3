"""Replies: this gateway's partition of the replies topic. Whose it is, how far it is read, and who takes over.

A partition is held by committing to it (gateway/lease.py). Whoever takes one over finds everything in it that is
missing; a gateway that has lost its own to another takes a free one, and reads on in the old one until nobody can wait
for anything there. Knows no HTTP and no Kafka client.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import structlog

from gateway.broker import Broker
from gateway.kafka_client import BrokerError, Commit, Record
from gateway.lease import free_partitions, holder, lease, pick_partition
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes
from gateway.reply_reader import ReplyReader
from schemas.topics import Topics

_log = structlog.get_logger(__name__)

GROUP = "gateway"
COMMIT_EVERY_S = 3.0
_ADOPT_EVERY_S = 3.0
_LINGER_S = 5.0  # beyond the longest wait: in a partition that was lost
RETENTION_MS = 24 * 3600 * 1000
CONFIGS = {"retention.ms": str(RETENTION_MS), "cleanup.policy": "delete"}


class Replies:
    """Reads one partition, hands answers to those who wait, keeps the others, adopts those of dead gateways."""

    def __init__(
        self,
        *,
        broker: Broker,
        topics: Topics,
        gateway_id: str,
        outcomes: Outcomes,
        metrics: Metrics,
        answer: Callable[[bytes, Record], bool],
        longest_wait_s: float,
        rng: random.Random,
    ) -> None:
        """`answer(id, record)` gives a reply to its waiting request; False when none waits.

        `on_moved`, which is to be set, is told the new partition when this gateway has lost its own.
        """
        self._broker = broker
        self._topic = topics.replies
        self._group = topics.group(GROUP)
        self._rng = rng
        self._gateway_id = gateway_id
        self._outcomes = outcomes
        self._metrics = metrics
        self._answer = answer
        self._linger_s = longest_wait_s + _LINGER_S
        self._count = 0
        self._reader: ReplyReader
        self._readers: asyncio.TaskGroup
        self._reading: asyncio.Task[None]
        self._is_released = False
        self.on_moved: Callable[[int], None] = lambda partition: None

    @property
    def partition(self) -> int:
        """The partition where answers for this gateway are to go."""
        return self._reader.partition

    async def claim(self, count: int) -> None:
        """Choose a partition of the `count` and take it over as it is. Raises BrokerError."""
        self._count = count
        self._reader = await self._choose(await self._commits())

    async def read(self, *, on_poll: Callable[[], None]) -> None:
        """Read for ever; `on_poll` follows each attempt to read the partition that was claimed."""
        async with asyncio.TaskGroup() as group:
            self._readers = group
            self._reading = self._start(self._reader, on_poll)
            await asyncio.Future()  # readers come and go

    async def hold(self) -> None:
        """Commit the position, which also says that we live; if another gateway holds the partition, take a free one.

        Raises BrokerError.
        """
        if self._is_released:
            return
        commits = await self._commits()
        now_ms = _now_ms()
        other = holder(commits.get(self.partition), now_ms=now_ms)
        if other in ("", self._gateway_id):
            await self.commit()
        elif free_partitions(commits, self._count, now_ms=now_ms):
            _log.warning("lose_partition", partition=self.partition, to=other)
            await self._move(commits)
        else:  # both store what the other one waits for: nothing is lost, but it is work
            _log.warning("share_partition", partition=self.partition, remedy="raise the replies topic's partitions")
            await self.commit()

    async def hold_regularly(self) -> None:
        """For ever: hold the partition, every few seconds."""
        failed = False
        while True:
            try:
                async with asyncio.timeout(COMMIT_EVERY_S):
                    await self.hold()
                failed = False
            except (BrokerError, TimeoutError) as error:
                if not failed:
                    _log.warning("commit_failed", error=repr(error))
                failed = True
            await asyncio.sleep(COMMIT_EVERY_S)

    async def commit(self, *, release: bool = False) -> None:
        """Commit the position; with `release` nobody holds the partition from then on. Raises BrokerError."""
        self._is_released = release
        await self._reader.commit("" if release else lease(self._gateway_id, now_ms=_now_ms()))

    async def adopt_regularly(self) -> None:
        """For ever: store what came for gateways that are gone, in our own partition first."""
        while True:
            try:
                reader = self._reader
                if reader.orphans:
                    first, end = reader.orphans
                    await self._adopt(reader.partition, first, end)
                    reader.adopted(end)
                await self._adopt_all()
            except (BrokerError, TimeoutError) as error:
                _log.warning("adopt_failed", error=repr(error))
            await asyncio.sleep(_ADOPT_EVERY_S)

    async def _choose(self, commits: dict[int, Commit]) -> ReplyReader:
        partition = pick_partition(commits, self._count, now_ms=_now_ms(), rng=self._rng)
        end = (await self._broker.ends(self._topic, [partition]))[partition]
        reader = ReplyReader(
            self._broker.follow(self._topic, {partition: end}, group=self._group),
            partition,
            own_ids=f"{self._gateway_id}-".encode(),
            outcomes=self._outcomes,
            metrics=self._metrics,
            answer=self._answer,
        )
        before = commits.get(partition)
        if before is not None and before.offset < end:
            reader.orphans = (before.offset, end)
        _log.info("claim_partition", topic=self._topic, partition=partition, offset=end, orphans=reader.orphans)
        return reader

    async def _move(self, commits: dict[int, Commit]) -> None:
        reader = await self._choose(commits)
        reading = asyncio.Event()
        task = self._start(reader, reading.set)
        try:
            await reading.wait()
            await reader.commit(lease(self._gateway_id, now_ms=_now_ms()))
        except BaseException:  # not moved: what is read so far was for nobody yet
            task.cancel()
            raise
        self._reader.is_holder = False
        asyncio.get_running_loop().call_later(self._linger_s, self._reading.cancel)
        self._reader, self._reading = reader, task
        self.on_moved(reader.partition)

    def _start(self, reader: ReplyReader, on_poll: Callable[[], None]) -> asyncio.Task[None]:
        return self._readers.create_task(reader.run(on_poll=on_poll), name=f"read replies {reader.partition}")

    async def _commits(self) -> dict[int, Commit]:
        found = await self._broker.commits(self._group, {self._topic: self._count})
        return {partition: commit for (_, partition), commit in found.items()}

    async def _adopt_all(self) -> None:
        commits = await self._commits()
        now_ms = _now_ms()
        others = [
            partition
            for partition, commit in commits.items()
            if partition != self.partition and not holder(commit, now_ms=now_ms)
        ]
        if not others:
            return
        ends = await self._broker.ends(self._topic, others)
        for partition in others:
            first, end = commits[partition].offset, ends[partition]
            if first < end:
                await self._adopt(partition, first, end)

    async def _adopt(self, partition: int, first: int, end: int) -> None:
        """Store the outcomes of the replies in [first, end); one that is stored already stays as it is."""
        _log.info("adopt_replies", partition=partition, first=first, end=end)
        follower = self._broker.follow(self._topic, {partition: first}, group=self._group)
        keeping = 0
        read, settled = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def note_kept() -> None:
            nonlocal keeping
            keeping -= 1
            settled.set()

        def take(records: Sequence[Record]) -> None:
            nonlocal keeping
            for record in records:
                if record.offset < end:
                    keeping += 1
                    self._outcomes.keep_record(record, on_kept=note_kept)

        def check() -> None:
            if follower.positions[partition] >= end:
                read.set()

        adopting = follower.run(take, on_poll=check, before_poll=self._outcomes.room)
        reader = loop.create_task(adopting, name="adopt replies")
        try:
            await read.wait()
            while keeping:
                settled.clear()
                await settled.wait()
            if partition != self.partition:
                await follower.commit(partition, Commit(end, ""))
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
