"""Backlog: how far pools are with their requests, read from Kafka. Doubt is never zero: what cannot be read raises.

Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from gateway.broker import Broker, BrokerError
from gateway.catalogue import Catalogue
from schemas.errors import ErrorCode, InferenceError
from schemas.progress import Progress, decode_progress
from schemas.topics import Topics

READ_TIMEOUT_S = 2.0


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


class Backlog:
    """Reads pools' progress; readers at the same time share one read, later ones within `cache_ms` its result."""

    def __init__(self, *, broker: Broker, catalogue: Catalogue, topics: Topics, cache_ms: int) -> None:
        self._broker = broker
        self._catalogue = catalogue
        self._topics = topics
        self._cache_s = cache_ms / 1000
        self._reads: dict[tuple[str, ...], tuple[float, asyncio.Task[PoolBacklog]]] = {}

    async def of_pool(self, pool: str) -> PoolBacklog:
        """The backlog of each model of a pool.

        Raises InferenceError: MODEL_NOT_FOUND for an unknown pool, UNAVAILABLE when Kafka does not tell within 2 s.
        """
        topics = tuple(model.topic for model in self._catalogue.pool(pool))
        now_s = time.monotonic()
        begun_s, read = self._reads.get((pool, *topics), (0.0, None))
        if read is None or (read.done() and (now_s - begun_s >= self._cache_s or read.exception() is not None)):
            read = asyncio.get_running_loop().create_task(self._read(pool, topics), name=f"read backlog of {pool}")
            read.add_done_callback(_retrieve)
            self._reads[pool, *topics] = (now_s, read)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.shield(read)
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"the backlog of pool {pool!r} cannot be read from Kafka: {cause!r}",
                remedy="try again in a moment",
            ) from cause

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


def _retrieve(read: asyncio.Task[PoolBacklog]) -> None:
    """Look at the error of a read whose readers have all given up, or asyncio complains about it."""
    if not read.cancelled():
        read.exception()
