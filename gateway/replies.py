"""Replies: this gateway's partition of the replies topic. Whose it is, how far it is read, and who takes over.

A partition is held by committing to it: the commit's metadata names the gateway and the time. A commit never passes a
reply whose outcome is still to be stored, so whoever takes a partition over finds everything that is missing.
Knows no HTTP and no Kafka client.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from gateway.broker import Broker, BrokerError, Commit, Follower, Record
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes

_log = structlog.get_logger(__name__)

GROUP = "gateway"
COMMIT_EVERY_S = 3.0
_ADOPT_EVERY_S = 3.0
_LEASE_MS = 15_000
RETENTION_MS = 24 * 3600 * 1000
CONFIGS = {"retention.ms": str(RETENTION_MS), "cleanup.policy": "delete"}


def lease(gateway_id: str, *, now_ms: int) -> str:
    """The metadata of a commit by a gateway that goes on holding the partition."""
    return f"{gateway_id}/{now_ms}"


def is_held(commit: Commit | None, *, now_ms: int) -> bool:
    """Whether a living gateway holds the partition of this commit."""
    if commit is None:
        return False
    _, _, at_ms = commit.metadata.rpartition("/")
    return at_ms.isdecimal() and abs(now_ms - int(at_ms)) < _LEASE_MS


def pick_partition(commits: Mapping[int, Commit], count: int, *, now_ms: int, rng: random.Random) -> int:
    """A random partition among those that nobody holds; when all are held, among all."""
    free = [partition for partition in range(count) if not is_held(commits.get(partition), now_ms=now_ms)]
    return rng.choice(free or range(count))


class Replies:
    """Reads one partition, hands answers to those who wait, keeps late ones, adopts those of dead gateways."""

    def __init__(
        self,
        *,
        broker: Broker,
        topic: str,
        group: str,
        gateway_id: str,
        outcomes: Outcomes,
        metrics: Metrics,
        answer: Callable[[bytes, Record], bool],
    ) -> None:
        """`answer(id, record)` gives a reply to its waiting request; False when none waits."""
        self._broker = broker
        self._topic = topic
        self._group = group
        self._gateway_id = gateway_id
        self._outcomes = outcomes
        self._metrics = metrics
        self._answer = answer
        self._follower: Follower | None = None
        self._count = 0
        self._own_ids = f"{gateway_id}-".encode()
        self._next_offset = 0
        self._unstored: set[int] = set()
        self._orphans: tuple[int, int] | None = None
        self.partition = -1

    async def claim(self, count: int) -> None:
        """Choose a partition of the `count` and take it over as it is. Raises BrokerError."""
        self._count = count
        commits = await self._commits()
        now_ms = _now_ms()
        partition = pick_partition(commits, count, now_ms=now_ms, rng=random.Random())
        end = (await self._broker.ends(self._topic, [partition]))[partition]
        self._next_offset = end
        before = commits.get(partition)
        if before is not None and before.offset < end:
            self._orphans = (before.offset, end)
        self._follower = self._broker.follow(self._topic, {partition: end}, group=self._group)
        self.partition = partition
        _log.info("claim_partition", topic=self._topic, partition=partition, offset=end, orphans=self._orphans)

    async def read(self, *, on_poll: Callable[[], None]) -> None:
        """Read for ever; `on_poll` follows each attempt."""
        assert self._follower is not None  # claimed before
        await self._follower.run(self._take, on_poll=on_poll)

    async def commit_regularly(self) -> None:
        """For ever: commit the position every few seconds, which also says that we live."""
        failed = False
        while True:
            try:
                async with asyncio.timeout(COMMIT_EVERY_S):
                    await self.commit()
                failed = False
            except (BrokerError, TimeoutError) as error:
                if not failed:
                    _log.warning("commit_failed", error=repr(error))
                failed = True
            await asyncio.sleep(COMMIT_EVERY_S)

    async def commit(self, *, release: bool = False) -> None:
        """Commit the position; with `release` nobody holds the partition from then on. Raises BrokerError."""
        assert self._follower is not None  # claimed before
        offset = self._orphans[0] if self._orphans else min(self._unstored, default=self._next_offset)
        metadata = "" if release else lease(self._gateway_id, now_ms=_now_ms())
        await self._follower.commit(self.partition, Commit(offset, metadata))

    async def adopt_regularly(self) -> None:
        """For ever: store what came for gateways that are gone, in our own partition first."""
        if self._orphans:
            await self._adopt(self.partition, *self._orphans)
            self._orphans = None
        while True:
            try:
                await self._adopt_all()
            except (BrokerError, TimeoutError) as error:
                _log.warning("adopt_failed", error=repr(error))
            await asyncio.sleep(_ADOPT_EVERY_S)

    def _take(self, records: Sequence[Record]) -> None:
        answer = self._answer
        for record in records:
            id_ = b""
            for name, value in record.headers:
                if name == "ce_id":
                    id_ = value
                    break
            if answer(id_, record):
                continue
            if id_.startswith(self._own_ids):
                self._keep_late(record)
            else:
                self._metrics.replies_foreign.inc()
        self._next_offset = records[-1].offset + 1

    def _keep_late(self, record: Record) -> None:
        self._metrics.replies_late.inc()
        offset = record.offset
        self._unstored.add(offset)
        self._outcomes.keep_record(record, on_kept=lambda: self._unstored.discard(offset))

    async def _commits(self) -> dict[int, Commit]:
        found = await self._broker.commits(self._group, {self._topic: self._count})
        return {partition: commit for (_, partition), commit in found.items()}

    async def _adopt_all(self) -> None:
        commits = await self._commits()
        others = [
            partition
            for partition, commit in commits.items()
            if partition != self.partition and not is_held(commit, now_ms=_now_ms())
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
        kept: list[asyncio.Future[None]] = []
        read = asyncio.Event()
        loop = asyncio.get_running_loop()

        def take(records: Sequence[Record]) -> None:
            for record in records:
                if record.offset < end:
                    done: asyncio.Future[None] = loop.create_future()
                    self._outcomes.keep_record(record, on_kept=partial(done.set_result, None))
                    kept.append(done)

        def check() -> None:
            if follower.positions[partition] >= end:
                read.set()

        reader = loop.create_task(follower.run(take, on_poll=check), name="adopt replies")
        try:
            await read.wait()
            await asyncio.gather(*kept)
            if partition != self.partition:
                await follower.commit(partition, Commit(end, ""))
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
