"""QueueWatch: how long models' queues are, kept fresh while somebody asks. Asking never waits.

Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from gateway.admission import Queue
from gateway.backlog import Backlog
from gateway.catalogue import Catalogue
from gateway.tenant_queues import TenantQueues
from schemas.errors import ErrorCode, InferenceError

_log = structlog.get_logger(__name__)

_READ_EVERY_S = 1.0
_ASKED_WITHIN_S = 5.0  # who was asked about so lately is read on
_FRESH_S = 5.0  # what is older says nothing
# Workers with nothing to do end few requests per second, which says nothing of how many they could. Only after a queue
# was never empty for so long, three of their reports, is their rate what they can do.
_BUSY_S = 6.0


class Rates(Protocol):
    """How fast queues are worked off, as the workers' reports tell."""

    def per_s(self, model: str, now_ms: int) -> float | None:
        """The most requests of this model that were lately ended per second; None when that is not known."""


class _Read:
    """What was read of a model: how many requests, when, and since when there have always been some."""

    __slots__ = ("at_s", "backlog", "busy_since_s")

    def __init__(self, at_s: float, backlog: int, before: _Read | None) -> None:
        self.at_s = at_s
        self.backlog = backlog
        self.busy_since_s: float = before.busy_since_s if backlog and before is not None and before.backlog else at_s


class QueueWatch:
    """Reads the backlog of pools in the background, and keeps `queued` true. Times in seconds, monotonic."""

    def __init__(
        self,
        *,
        backlog: Backlog,
        catalogue: Catalogue,
        rates: Rates,
        queued: TenantQueues,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backlog = backlog
        self._catalogue = catalogue
        self._rates = rates
        self._queued = queued
        self._now_s = now_s
        self._asked: dict[str, float] = {}  # by pool
        self._read: dict[str, _Read] = {}  # by model
        self._wanted = asyncio.Event()

    def queue_of(self, model: str) -> Queue | None:
        """The queue of a model as it was last read; None when that is too long ago, or never was. Never waits."""
        try:
            pool = self._catalogue.model(model).pool
        except InferenceError:
            return None
        now_s = self._now_s()
        self._asked[pool] = now_s
        self._wanted.set()
        read = self._read.get(model)
        if read is None or now_s - read.at_s > _FRESH_S:
            return None
        rate = None
        if read.backlog and read.at_s - read.busy_since_s >= _BUSY_S:
            rate = self._rates.per_s(model, time.time_ns() // 1_000_000)
        return Queue(read.backlog, rate, now_s - read.at_s)

    async def run(self) -> None:
        """For ever: read what is asked about; while nobody asks, nothing."""
        failing: set[str] = set()
        while True:
            await self._wanted.wait()
            self._ask_for_queued()
            now_s = self._now_s()
            self._asked = {pool: at_s for pool, at_s in self._asked.items() if now_s - at_s <= _ASKED_WITHIN_S}
            self._read = {model: read for model, read in self._read.items() if now_s - read.at_s <= _FRESH_S}
            if not self._asked:
                self._wanted.clear()
                continue
            for pool in list(self._asked):
                try:
                    await self._read_pool(pool)
                    failing.discard(pool)
                except InferenceError as error:
                    if pool not in failing:
                        _log.warning("watch_queue_failed", pool=pool, error=error.message)
                    failing.add(pool)
            await asyncio.sleep(_READ_EVERY_S)

    def _ask_for_queued(self) -> None:
        """Read on as long as tenants have something queued: nobody may be refused for what has ended meanwhile."""
        for model in self._queued.models():
            try:
                self._asked[self._catalogue.model(model).pool] = self._now_s()
            except InferenceError as error:
                if error.code is ErrorCode.MODEL_NOT_FOUND:
                    self._queued.forget(model)

    async def _read_pool(self, pool: str) -> None:
        begun_s = self._now_s()
        found = await self._backlog.of_pool(pool)
        for model in self._catalogue.pool(pool):
            if (partitions := found.get(model.topic)) is None:  # announced meanwhile
                continue
            name, count = model.metadata.name, sum(partition.records for partition in partitions)
            self._read[name] = _Read(begun_s, count, self._read.get(name))
            self._queued.settle(name, model.epoch, [partition.progress for partition in partitions])
