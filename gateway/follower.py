"""Follower: reads some partitions of a topic without a group, for ever. Knows nothing of what is in the records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import structlog

from gateway.kafka_client import (
    BrokerError,
    Commit,
    Options,
    Record,
    commit_place,
    new_consumer,
    place,
    stop_client,
)

_log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_POLL_MS = 1000


class Follower:
    """Reads partitions without a group for ever: whatever ends the client, a new one goes on where it was."""

    def __init__(self, options: Options, topic: str, positions: Mapping[int, int], group: str | None) -> None:
        self._options = options
        self._topic = topic
        self._group = group
        self._consumer: Any = None
        self.positions = dict(positions)

    async def run(
        self,
        on_records: Callable[[Sequence[Record]], None],
        *,
        on_poll: Callable[[], None] = lambda: None,
        before_poll: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Read until cancelled. `on_poll` follows the start and every read, `before_poll` may hold one up."""
        failed = False
        while True:
            try:
                async with AsyncExitStack() as stack:
                    await self._open(stack)
                    if failed:
                        _log.info("read_again", topic=self._topic)
                    failed = False
                    on_poll()
                    while True:
                        if before_poll is not None:
                            await before_poll()
                        await self._poll(on_records)
                        on_poll()
            except BrokerError as error:
                if not failed:
                    _log.warning("read_failed", topic=self._topic, error=repr(error))
                failed = True
            await asyncio.sleep(_RETRY_S)

    async def commit(self, partition: int, commit: Commit) -> None:
        """Commit a position. Raises BrokerError, also while the reader is being replaced."""
        if self._consumer is None:
            raise BrokerError("the reader is being replaced")
        await commit_place(self._consumer, self._topic, partition, commit)

    async def _open(self, stack: AsyncExitStack) -> None:
        consumer = new_consumer(self._options, self._group)
        stack.push_async_callback(stop_client, consumer.stop)
        stack.callback(setattr, self, "_consumer", None)
        places = {place(self._topic, partition): offset for partition, offset in self.positions.items()}
        consumer.assign(list(places))
        await consumer.start()
        for where, offset in places.items():
            consumer.seek(where, offset)
        self._consumer = consumer

    async def _poll(self, on_records: Callable[[Sequence[Record]], None]) -> None:
        got = await self._consumer.getmany(timeout_ms=_POLL_MS)
        for where, records in got.items():
            on_records(records)
            self.positions[where.partition] = records[-1].offset + 1
        if not got:  # compacted tails and markers move a position without a record
            for partition in self.positions:
                self.positions[partition] = await self._consumer.position(place(self._topic, partition))
