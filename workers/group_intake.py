"""GroupIntake: request topics read as a member of a consumer group, acknowledged record by record.

A group's offsets are committed here and nowhere else: on a short timer, before partitions are given up, and at the
end. What is done out of order travels in the commit's metadata. When workers come and go nothing stops: what is kept
is read and run on through the group's rounds, and workers/holdings.py says how a partition moves. Knows no Kafka
client: that is workers/intake.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable

import structlog

from schemas.errors import InferenceError
from schemas.kafka_connection import KafkaConnection
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.delivery import Delivery, Partition
from workers.holdings import Holdings, Key, inherited
from workers.intake import Member, Reader
from workers.receipts import Receipts, delivery_of

log = structlog.get_logger()

_RETRY_S = 0.5
_SESSION_TIMEOUT_S = 10.0  # how long a killed worker is missed before its partitions go to others
_PART_TIMEOUT_S = 5.0  # how long running batches are waited for before their partitions are given up nevertheless
_COMMIT_RETRY_S = 0.1


class GroupIntake(Receipts):
    """The consumer-group form of an Intake (see workers/delivery.py)."""

    def __init__(
        self,
        *,
        kafka: KafkaConnection,
        group: str,
        topics: Iterable[str],
        clock_seed_us: int | None = None,
        session_timeout_s: float = _SESSION_TIMEOUT_S,
        part_timeout_s: float = _PART_TIMEOUT_S,
    ) -> None:
        """`clock_seed_us`: see workers/arrival.py."""
        super().__init__()
        self._clock_seed_us = clock_seed_us
        self._reader = Reader(kafka=kafka)
        self._member = Member(kafka=kafka, group=group, topics=topics, session_timeout_s=session_timeout_s)
        self._holdings = Holdings()
        self._part_timeout_s = part_timeout_s
        self._adopting: asyncio.Task[None] | None = None
        self._parting: asyncio.Task[None] | None = None
        self._commit_turn = asyncio.Lock()
        self.is_owner = False  # the group has dealt us our part, be it nothing, and has not put us out since
        self.assigned = asyncio.Event()  # no round of the group is under way
        self.unassigned_since_s = time.monotonic()

    async def open(self) -> None:
        """Connect and begin to join the group. Raises InferenceError(UNAVAILABLE) if no broker answers."""
        await self._reader.open()
        try:
            await self._member.open(self)
        except InferenceError:
            await self._reader.close()
            raise

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Consume these topics from now on, also before `open`. Raises InferenceError(UNAVAILABLE)."""
        await self._member.subscribe(topics)

    async def close(self) -> None:
        """Leave the group, and disconnect. Commits nothing."""
        for task in (self._adopting, self._parting):
            if task is not None:
                task.cancel()
        await self._member.close()
        await self._reader.close()

    async def fetch(self) -> list[Delivery]:
        """Wait for records and return at least one. Cancel-safe."""
        while True:
            if released := self._take_released():
                return released
            try:
                self._check()
                deliveries = await self._fetch()
            except InferenceError as error:
                log.warning("fetch_records_failed", error=error.message)
                await asyncio.sleep(_RETRY_S)
                continue
            if deliveries:
                return deliveries

    async def _fetch(self) -> list[Delivery]:
        fetched = await self._reader.fetch()
        if not fetched:
            await self._pass_gaps()
        deliveries: list[Delivery] = []
        for key, records in fetched.items():
            partition = self._holdings.held.get(key)
            if partition is None:  # given up while the fetch was under way; its next owner reads it
                continue
            deliver = partition.tracker.deliver
            deliveries += [delivery_of(partition, record) for record in records if deliver(record.offset)]
        return deliveries

    async def _pass_gaps(self) -> None:
        """Let idle partitions commit past transaction markers, else their backlog would never reach zero.

        Only here: this is the one place where no record can be between the client's position and the tracker.
        """
        for key, partition in list(self._holdings.held.items()):
            position = await self._reader.position(key)
            if position is not None:
                partition.tracker.pass_gap(position)

    def _check(self) -> None:
        """Raise what has gone wrong beside us."""
        for task in (self._adopting, self._parting):
            if task is not None and task.done() and not task.cancelled():
                task.result()
        try:
            self._member.check()
        except InferenceError:
            self._unsettle()
            raise

    def pause(self, topic: str) -> None:
        """Deliver nothing more of `topic`; membership goes on."""
        self._reader.pause(topic)

    def resume(self, topic: str) -> None:
        """Deliver records of `topic` again."""
        self._reader.resume(topic)

    async def commit(self) -> None:
        """Commit what was acknowledged of the partitions that are ours. Waits while the group cannot take it."""
        async with self._commit_turn:
            while todo := self._holdings.uncommitted():
                try:
                    if await self._member.commit(todo):
                        self._holdings.note_committed(todo)
                        return
                except InferenceError as error:
                    log.warning("commit_refused", error=error.message)
                    return
                await asyncio.sleep(_COMMIT_RETRY_S)

    def committed(self, key: Key) -> int | None:
        """Up to where everything is done and committed, of a partition that is ours; None: not ours, or not known."""
        return self._holdings.committed(key)

    def claim(self, *, is_member: bool) -> Collection[Key]:
        """See Rounds."""
        self._unsettle()
        if self._adopting is not None:
            self._adopting.cancel()  # what is not ours yet, we do not claim
        if not is_member:
            self._lose()
        return self._holdings.claim()

    def assign(self, assigned: set[Key]) -> None:
        """See Rounds."""
        new = self._holdings.assign(assigned)
        if self._holdings.parting and (self._parting is None or self._parting.done()):
            self._parting = asyncio.create_task(self._part(), name="part with partitions")
        self._adopting = asyncio.create_task(self._adopt(new), name="adopt partitions")
        if self._holdings.is_stale(assigned):
            self._member.rejoin()

    def _lose(self) -> None:
        """Others may own what we held: go on with nothing of it, commit nothing."""
        if self._holdings.held:
            log.warning("lose_partitions", partitions=len(self._holdings.held))
        if self._parting is not None:
            self._parting.cancel()
        self._holdings.lose()
        self.is_owner = False
        self._reader.read({})

    async def _adopt(self, new: list[Key]) -> None:
        """Begin to read what is new to us where its last owner has left it. The rest is read on meanwhile."""
        while True:
            try:
                progress = inherited(await self._member.commits(new), await self._reader.bounds(new)) if new else {}
                break
            except InferenceError as error:
                log.warning("read_commits_failed", error=error.message)
                await asyncio.sleep(_RETRY_S)
        for (topic, number), begin in progress.items():
            clock = BrokerClock(seed_us=self._clock_seed_us)
            self._holdings.add(Partition(topic, number, AckTracker(begin), clock))
        self._reader.read({key: partition.tracker.position for key, partition in self._holdings.held.items()})
        self.is_owner = True
        self.assigned.set()
        held, parting = len(self._holdings.held), len(self._holdings.parting)
        log.info("assign_partitions", partitions=held, new=len(new), parting=parting)

    async def _part(self) -> None:
        """Release what we are to give up once the work that runs of it has ended and is committed, or takes too long.

        What takes too long runs on; its results are published, but its next owner will run it once more.
        """
        while self._holdings.parting:
            try:
                async with asyncio.timeout(self._part_timeout_s):
                    while not self._holdings.is_idle():
                        self._idle.clear()
                        await self._idle.wait()
            except TimeoutError:
                log.warning("part_while_running", wait_s=self._part_timeout_s)
            released = list(self._holdings.parting)
            await self.commit()
            self._holdings.release(released)
            self._member.rejoin()

    def _unsettle(self) -> None:
        if self.assigned.is_set():
            self.assigned.clear()
            self.unassigned_since_s = time.monotonic()
