"""ControlFollower: reads the control topic from its beginning, and goes on reading it whatever happens to the broker.

Must not know what its records mean: that is workers/control_desk.py. Knows no Kafka client: that is workers/intake.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import structlog

from schemas.errors import InferenceError
from schemas.kafka_connection import KafkaConnection
from workers.intake import Reader

log = structlog.get_logger()

_RETRY_S = 0.5
_CLOSE_S = 2.0
_FETCH_BYTES = 4 * 1024 * 1024  # most of what there is at the start are reports that are out of date


class ControlRecord(NamedTuple):
    """One record. `value` None: what the key names is not so any more. `appended_ms` is the broker's clock."""

    key: bytes | None
    value: bytes | None
    appended_ms: int


class ControlFollower:
    """Lives on the event loop; keeps nothing but its position."""

    def __init__(
        self, *, kafka: KafkaConnection, topic: str, on_records: Callable[[list[ControlRecord]], None]
    ) -> None:
        """`on_records` is called with what was read, in order."""
        self._kafka = kafka
        self._key = (topic, 0)  # the topic is compacted: one partition, one order
        self._on_records = on_records
        self._reader: Reader | None = None
        self._position: int | None = None

    async def catch_up(self) -> None:
        """Read up to the present end. Raises InferenceError(UNAVAILABLE); called again, it goes on where it was."""
        try:
            reader = await self._open()
            _, end = (await reader.bounds([self._key]))[self._key]
            while (self._position or 0) < end:
                await self._read(reader)
        except InferenceError:
            await self.close()
            raise

    async def run(self) -> None:
        """Follow until cancelled."""
        failed = False
        while True:
            try:
                await self._read(await self._open())
                failed = False
            except InferenceError as error:
                if not failed:
                    log.warning("follow_control_failed", error=error.message)
                failed = True
                await self.close()
                await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Disconnect; `catch_up` and `run` connect again. Idempotent."""
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(TimeoutError, InferenceError):
                async with asyncio.timeout(_CLOSE_S):
                    await reader.close()

    async def _open(self) -> Reader:
        if self._reader is None:
            reader = Reader(kafka=self._kafka, partition_fetch_bytes=_FETCH_BYTES)
            await reader.open()
            self._reader = reader
            first, end = (await reader.bounds([self._key]))[self._key]
            if self._position is None or not first <= self._position <= end:  # the latter: the topic was made anew
                self._position = first
            reader.read({self._key: self._position})
        return self._reader

    async def _read(self, reader: Reader) -> None:
        fetched = await reader.fetch()
        records = fetched.get(self._key, ())
        if records:
            self._position = records[-1].offset + 1
            self._on_records([ControlRecord(record.key, record.value, record.timestamp) for record in records])
        elif (position := await reader.position(self._key)) is not None:  # compaction leaves gaps at the end, too
            self._position = position
