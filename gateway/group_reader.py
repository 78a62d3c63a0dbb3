"""GroupReader: a member of a consumer group that works on many records at a time and commits only what is done.

Must not know a Kafka client's classes beyond the consumer that it is given, nor what records hold. A record whose time
has not come holds up its partition and no other. Any process may be killed at any moment: what was not committed is
read again, by whoever holds the partition then.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog

from gateway.kafka_client import BrokerError, OnPlaces, Record
from gateway.offset_tracker import OffsetTracker

_log = structlog.get_logger(__name__)

_POLL_MS = 500
_FULL_POLL_MS = 50
_SHORTEST_HOLD_MS = 100  # for what waits: looking at it more often costs more than being so late
_COMMIT_EVERY_S = 1.0
_RETRY_S = 0.5
_REVOKE_S = 5.0  # for work under way before a round of the group; what is not done then is done twice
_STOP_S = 3.0

Place = Any  # the client's (topic, partition); it publishes no types
Work = Coroutine[Any, Any, None]
# What to do with a record: work to be awaited, a time in Unix milliseconds before which not to look at it, or nothing.
Take = Callable[[Record], Work | int | None]


class GroupReader:
    """Reads what the group gives it. `join` makes a consumer, `take` says what to do with a record."""

    def __init__(self, *, join: Callable[[OnPlaces, OnPlaces], Any], take: Take, limit: int) -> None:
        """`limit`: records that are worked on at a time."""
        self._join = join
        self._take = take
        self._limit = limit
        self._trackers: dict[Place, OffsetTracker] = {}
        self._waiting: dict[Place, deque[Record]] = {}
        self._holds: dict[Place, int] = {}
        self._running: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        self._full = False
        self._in_round = False
        self._consumer: Any = None
        self.joined = asyncio.Event()

    async def run(self, stopping: asyncio.Event, *, drain_s: float) -> None:
        """Read until `stopping`; then finish what is under way, for `drain_s` at most, commit and leave the group.

        Whatever ends the client, a new one goes on. Cancelled, it leaves at once, and what is under way will be read
        again.
        """
        failed = False
        try:
            while not stopping.is_set():
                try:
                    async with AsyncExitStack() as stack:
                        await self._open(stack)
                        failed = False
                        await self._read(stopping)
                        await self._drain(drain_s)
                except BrokerError as error:
                    if not failed:
                        _log.warning("read_group_failed", error=repr(error))
                    failed = True
                    await asyncio.sleep(_RETRY_S)
        finally:
            for task in self._running.values():
                task.cancel()

    def positions(self) -> dict[tuple[str, int], int]:
        """How far each partition that is held is done, by topic and number; those without a record yet are left out."""
        return {(place.topic, place.partition): tracker.position for place, tracker in self._trackers.items()}

    async def _open(self, stack: AsyncExitStack) -> None:
        consumer = self._join(self._on_revoked, self._on_assigned)
        stack.push_async_callback(self._close, consumer)
        self._consumer = consumer
        await consumer.start()

    async def _close(self, consumer: Any) -> None:
        self._consumer = None
        self.joined.clear()
        self._forget()
        try:
            async with asyncio.timeout(_STOP_S):
                await consumer.stop()
        except (TimeoutError, BrokerError) as error:
            _log.warning("leave_group_failed", error=repr(error))

    async def _read(self, stopping: asyncio.Event) -> None:
        commit_at_s = 0.0
        while not stopping.is_set():
            self._take_waiting()
            self._pause()
            room = max(1, self._limit - len(self._running))
            got = await self._consumer.getmany(timeout_ms=self._patience_ms(), max_records=room)
            if not self._in_round:  # else it is another's by now
                for place, records in got.items():
                    self._waiting.setdefault(place, deque()).extend(records)
            if time.monotonic() >= commit_at_s:
                await self._commit()
                commit_at_s = time.monotonic() + _COMMIT_EVERY_S

    def _take_waiting(self) -> None:
        if self._in_round:
            return
        now_ms = _now_ms()
        for place, records in list(self._waiting.items()):
            if self._holds.get(place, 0) > now_ms:
                continue
            self._holds.pop(place, None)
            while records and len(self._running) < self._limit:
                verdict = self._take_one(place, records[0])
                if verdict is not None:
                    self._holds[place] = max(verdict, now_ms + _SHORTEST_HOLD_MS)
                    break
                records.popleft()
            if not records:
                del self._waiting[place]

    def _take_one(self, place: Place, record: Record) -> int | None:
        """Begin with a record; a time when it is to be looked at again."""
        key = (record.topic, record.partition, record.offset)
        tracker = self._trackers.get(place)
        if tracker is None:
            tracker = self._trackers[place] = OffsetTracker(record.offset)
        task = self._running.get(key)
        if task is None:  # else it came back to us while we are at it
            what = self._take(record)
            if isinstance(what, int):
                return what
            if what is not None:
                task = self._running[key] = asyncio.get_running_loop().create_task(what, name="group work")
                task.add_done_callback(lambda done: self._ended(key, done))
        tracker.begin(record.offset)
        if task is None:
            tracker.end(record.offset)
        else:
            task.add_done_callback(partial(_end_offset, tracker, record.offset))
        return None

    def _ended(self, key: tuple[str, int, int], task: asyncio.Task[None]) -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()):
            # It stays undone, so the partition's commit stays before it, which the group's lag shows.
            _log.error("work_on_record_failed", place=str(key), exc_info=error)

    def _pause(self) -> None:
        """Read on only where there is something to do with what comes."""
        running = len(self._running)
        self._full = running >= self._limit or (self._full and running > self._limit // 2)
        assigned: frozenset[Place] = self._consumer.assignment()
        wanted = assigned if self._full else assigned & self._waiting.keys()
        paused = self._consumer.paused()
        self._consumer.pause(*(wanted - paused))
        self._consumer.resume(*((paused & assigned) - wanted))

    def _patience_ms(self) -> int:
        if self._full:
            return _FULL_POLL_MS
        if not self._waiting:
            return _POLL_MS
        soonest_ms = min(self._holds.get(place, 0) for place in self._waiting)
        return min(max(soonest_ms - _now_ms(), 1), _POLL_MS)

    async def _commit(self) -> None:
        held = self._consumer.assignment()
        offsets = {place: tracker.position for place, tracker in self._trackers.items() if place in held}
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except BrokerError as error:
            _log.warning("commit_group_failed", error=repr(error))

    async def _drain(self, drain_s: float) -> None:
        self._consumer.pause(*self._consumer.assignment())
        _log.info("drain", step="webhooks: finish attempts under way", under_way=len(self._running))
        if self._running:
            await asyncio.wait(self._running.values(), timeout=drain_s)
        await self._commit()
        _log.info("drain", step="webhooks: leave the group", given_up=len(self._running))

    async def _on_revoked(self, places: Collection[Place]) -> None:
        if not places:
            return
        self._in_round = True
        if self._running:
            await asyncio.wait(self._running.values(), timeout=_REVOKE_S)
        await self._commit()
        self._forget()

    async def _on_assigned(self, places: Collection[Place]) -> None:
        self._forget()
        self._in_round = False
        self.joined.set()
        _log.info("join_group", partitions=len(places))

    def _forget(self) -> None:
        self._trackers.clear()
        self._waiting.clear()
        self._holds.clear()


def _end_offset(tracker: OffsetTracker, offset: int, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is None:
        tracker.end(offset)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
