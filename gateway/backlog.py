"""Backlog: how far pools are with their requests, read from Kafka. Doubt is never zero: what cannot be read raises.

Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from gateway.broker import Broker
from gateway.catalogue import Catalogue
from gateway.kafka_client import BrokerError
from schemas.errors import ErrorCode, InferenceError
from schemas.progress import Progress, decode_progress
from schemas.topics import Topics

READ_TIMEOUT_S = 2.0
_OLD_S = 2.0  # how old what is told of a single job may be; a scaler is never told anything this old


class PartitionBacklog(msgspec.Struct, frozen=True):
    """A pool's progress on one partition and the partition's next offset."""

    progress: Progress
    end_offset: int

    @property
    def records(self) -> int:
        """Unread and unacknowledged records."""
        return self.progress.backlog(self.end_offset)

    def ahead_of(self, offset: int) -> int:
        """How many records before `offset` are not done."""
        done = sum(min(end, offset) - first for first, end in self.progress.done if first < offset)
        return max(0, offset - self.progress.committed - done)


PoolBacklog = dict[str, tuple[PartitionBacklog, ...]]  # by request topic, in the order of partitions


class _Known(msgspec.Struct):
    """What is known of a pool: the read under way or the last one, and what the last good one found when."""

    topics: tuple[str, ...]
    begun_s: float
    read: asyncio.Task[PoolBacklog]
    found: PoolBacklog | None = None
    found_s: float = 0.0


class Backlog:
    """Reads pools' progress; readers at the same time share one read, later ones within `cache_ms` its result."""

    def __init__(self, *, broker: Broker, catalogue: Catalogue, topics: Topics, cache_ms: int) -> None:
        self._broker = broker
        self._catalogue = catalogue
        self._topics = topics
        self._cache_s = cache_ms / 1000
        self._known: dict[str, _Known] = {}

    async def of_pool(self, pool: str, *, may_be_old: bool = False) -> PoolBacklog:
        """The backlog of each model of a pool. With `may_be_old` nobody waits for a read while the last one is at most
        two seconds old: it is read anew in the background. With no cache nothing is ever old.

        Raises InferenceError: MODEL_NOT_FOUND for an unknown pool, UNAVAILABLE when Kafka does not tell within 2 s.
        """
        topics = tuple(model.topic for model in self._catalogue.pool(pool))
        now_s = time.monotonic()
        known = self._known.get(pool)
        if known is None or known.topics != topics:
            known = self._known[pool] = _Known(topics, now_s, self._begin(pool, topics))
        elif known.read.done() and (now_s - known.begun_s >= self._cache_s or known.read.exception() is not None):
            known.begun_s, known.read = now_s, self._begin(pool, topics)
        if may_be_old and self._cache_s and known.found is not None and now_s - known.found_s <= _OLD_S:
            return known.found
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.shield(known.read)
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"the backlog of pool {pool!r} cannot be read from Kafka: {cause!r}",
                remedy="try again in a moment",
            ) from cause

    def _begin(self, pool: str, topics: tuple[str, ...]) -> asyncio.Task[PoolBacklog]:
        begun_s = time.monotonic()
        read = asyncio.get_running_loop().create_task(self._read(pool, topics), name=f"read backlog of {pool}")

        def note(read: asyncio.Task[PoolBacklog]) -> None:
            # Looked at even when its readers have all given up, or asyncio complains about it.
            if read.cancelled() or read.exception() is not None:
                return
            known = self._known.get(pool)
            if known is not None and known.topics == topics:
                known.found, known.found_s = read.result(), begun_s

        read.add_done_callback(note)
        return read

    async def _read(self, pool: str, topics: tuple[str, ...]) -> PoolBacklog:
        async with asyncio.timeout(READ_TIMEOUT_S):
            states = await self._broker.states(self._topics.group(pool), topics)
        return {
            topic: tuple(
                PartitionBacklog(decode_progress(state.commit.offset, state.commit.metadata), state.end_offset)
                for state in partitions
            )
            for topic, partitions in states.items()
        }
