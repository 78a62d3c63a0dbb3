"""ControlDesk: what this worker does about the control topic: who is cancelled, what is wished, and what may go.

The topic is compacted, so what nobody needs any more must be removed by somebody: a cancellation by whoever owns the
request's partition, once everything up to it is committed; what the dead have left behind by any worker that starts.
Removing twice does no harm. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import islice

import structlog

from schemas.kafka_connection import KafkaConnection
from schemas.worker_report import decode_report
from workers.cancellations import Cancellations, Place
from workers.control import ControlFollower, ControlRecord
from workers.publisher import Publication, Publisher
from workers.wishes import Wishes

log = structlog.get_logger()

_SWEEP_S = 1.0
_REMOVED_AT_ONCE = 1000
_DEAD_MS = 10 * 60_000  # a worker that has told nothing for so long does not live
_MAX_LEFT = 100_000  # records of the dead that are noted at the start; the next start removes the rest


class ControlDesk:
    """Lives on the event loop. `catch_up` comes first, then `run`."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        kafka: KafkaConnection,
        control_topic: str,
        cancelled: Cancellations,
        wishes: Wishes,
    ) -> None:
        """`cancelled` and `wishes` are kept up to date."""
        self._publisher = publisher
        self._control_topic = control_topic
        self._cancelled = cancelled
        self._wishes = wishes
        self._follower = ControlFollower(kafka=kafka, topic=control_topic, on_records=self._take)
        self._left: dict[bytes, bool] | None = {}  # at the start: by key, whether its latest record may go
        self._told_forgotten = 0
        self.on_cancelled: Callable[[Iterable[str]], None] = _ignore_topics
        self.committed: Callable[[Place], int | None] = _nothing_committed

    async def catch_up(self) -> None:
        """Read everything there is. Raises InferenceError(UNAVAILABLE); it may be called again."""
        await self._follower.catch_up()
        left, self._left = self._left or {}, None
        self._remove(key for key, may_go in left.items() if may_go)
        self._cancelled.take_fresh()
        self._wishes.begin()
        log.info("read_control", cancelled=self._cancelled.count, removed=sum(left.values()))

    async def run(self) -> None:
        """Follow, and remove what is done, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follower.run(), name="follow control")
            tasks.create_task(self._sweep_on_timer(), name="sweep control")

    async def close(self) -> None:
        """Disconnect."""
        await self._follower.close()

    def sweep(self) -> None:
        """Remove the cancellations of what is done, as far as it is committed by us."""
        if not self._cancelled.count:
            return
        done = list(islice(self._cancelled.done(self.committed), _REMOVED_AT_ONCE))
        self._remove(self._cancelled.key(origin) for origin in done)
        for origin in done:
            self._cancelled.remove(origin)

    async def _sweep_on_timer(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep()
            if self._cancelled.forgotten > self._told_forgotten:
                log.warning("forget_cancellations", count=self._cancelled.forgotten - self._told_forgotten)
                self._told_forgotten = self._cancelled.forgotten

    def _take(self, records: list[ControlRecord]) -> None:
        for key, value, appended_ms in records:
            if not self._cancelled.apply(key, value):
                self._wishes.apply(key, value)
            if self._left is not None and key is not None:
                self._note_left(self._left, key, value, appended_ms)
        if self._left is None and (topics := self._cancelled.take_fresh()):
            self.on_cancelled(topics)

    def _note_left(self, left: dict[bytes, bool], key: bytes, value: bytes | None, appended_ms: int) -> None:
        now_ms = time.time_ns() // 1_000_000
        is_dead = now_ms - appended_ms > _DEAD_MS and decode_report(key, value) is not None
        may_go = value is not None and (is_dead or self._cancelled.is_needless(key, value, now_ms))
        if may_go and len(left) < _MAX_LEFT:
            left[key] = True
        else:
            left.pop(key, None)

    def _remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._publisher.publish(Publication(self._control_topic, 0, None, [], _ignore_end, key=key))


def _ignore_end() -> None:
    """A removal that does not arrive is done again by the next owner."""


def _ignore_topics(topics: Iterable[str]) -> None:
    """Nobody has said who is to be told."""


def _nothing_committed(place: Place) -> int | None:
    """Nobody has said what is committed."""
    return None
