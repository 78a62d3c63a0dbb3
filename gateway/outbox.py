"""Outbox: the records of one topic on their way to Kafka, many per write.

One batch is under way, the next one collects meanwhile, so that what a record costs shrinks as load grows. Batches go
to the partitions in turn: requests that come together stay together, rare ones spread evenly. Must not know a Kafka
client's classes beyond the producer that it is given, nor what records hold.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

Headers = list[tuple[str, bytes]]


class Handed:
    """A record that was handed over. `on_end` is called once, when the broker has taken it or it has failed."""

    __slots__ = ("_flight", "_index", "has_left", "headers", "is_withdrawn", "on_end", "value")

    def __init__(self, value: bytes, headers: Headers, on_end: Callable[[Handed], None]) -> None:
        self.value = value
        self.headers = headers
        self.on_end = on_end
        self._flight: _Flight | None = None
        self._index = 0
        self.has_left = False  # the client has it: it may be written, whatever anybody says
        self.is_withdrawn = False

    def withdraw(self) -> bool:
        """Take it back: True when it will never be written, False when that is too late. `on_end` is not called."""
        if self.has_left or self._flight is not None:
            return self.is_withdrawn
        self.is_withdrawn = True
        self.value, self.headers = b"", []
        return True

    @property
    def has_ended(self) -> bool:
        """Whether it is known what became of the record."""
        return self._flight is not None

    @property
    def error(self) -> BaseException | None:
        """Why the record was not taken; None while it is under way, and when it was."""
        return None if self._flight is None else self._flight.error

    def place(self) -> tuple[int, int, int]:
        """Partition, offset and time by the broker's clock in milliseconds. Raises RuntimeError before there is one."""
        flight = self._flight
        if flight is None or flight.metadata is None:
            raise RuntimeError("the record has no place yet")
        metadata = flight.metadata
        return metadata.partition, metadata.offset + self._index, metadata.timestamp

    def end(self, flight: _Flight, index: int) -> None:
        """Tell it what became of its batch."""
        self._flight, self._index = flight, index
        self.value, self.headers = b"", []
        self.on_end(self)


class _Flight:
    """What became of a batch: the broker's acknowledgement of its first record, or an error."""

    __slots__ = ("error", "metadata")

    def __init__(self, metadata: Any, error: BaseException | None) -> None:  # Any: the client publishes no types
        self.metadata = metadata
        self.error = error


class Outbox:
    """The records of one topic. `producer` gives the present producer, which may be replaced between two batches."""

    def __init__(
        self,
        topic: str,
        *,
        producer: Callable[[], Any],
        partition_count: Callable[[], int],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`on_error` is told of each batch that failed, before its records are."""
        self._topic = topic
        self._producer = producer
        self._partition_count = partition_count
        self._on_error = on_error
        self._queue: deque[Handed] = deque()
        self._sending_since_s: float | None = None
        self._turn: int | None = None
        self._task: asyncio.Task[None] | None = None

    def put(self, record: Handed) -> None:
        """Hand a record over; never waits. It leaves with the end of this tick, or with the batch under way."""
        self._queue.append(record)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"outbox {self._topic}")

    async def flush(self) -> None:
        """Wait until everything handed over has ended. Cancel-safe."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    def overdue_s(self, now_s: float) -> float:
        """For how many seconds the batch under way has been on its way; 0 when there is none. `now_s`: monotonic."""
        return 0.0 if self._sending_since_s is None else now_s - self._sending_since_s

    def fail_waiting(self, error: BaseException) -> None:
        """End what has not left yet: it is not written. What is under way goes on."""
        waiting, self._queue = self._queue, deque()
        for record in waiting:
            if not record.is_withdrawn:
                record.end(_Flight(None, error), 0)

    async def _run(self) -> None:
        try:
            while self._queue:
                self._sending_since_s = time.monotonic()
                await self._send()
        finally:
            self._sending_since_s = None
            self._task = None

    async def _send(self) -> None:
        sent: list[Handed] = []
        metadata, error = None, None
        try:
            producer, partition = self._producer(), self._next_partition()
            batch = producer.create_batch()
            _fill(batch, self._queue, sent)
            if not sent:  # all were withdrawn
                return
            acknowledged = await producer.send_batch(batch, self._topic, partition=partition)
            metadata = await acknowledged
        except Exception as caught:  # whatever it is, every record of the batch must hear of it
            error = caught
            while self._queue and not sent:  # it came before the first record was looked at, and would come again
                if not (record := self._queue.popleft()).is_withdrawn:
                    sent.append(record)
            self._on_error(caught)
        flight = _Flight(metadata, error)
        for index, record in enumerate(sent):
            record.end(flight, index)

    def _next_partition(self) -> int:
        count = self._partition_count()
        # The first one is drawn, so that gateways started together do not march in step.
        self._turn = random.randrange(count) if self._turn is None else (self._turn + 1) % count
        return self._turn


def _fill(batch: Any, queue: deque[Handed], sent: list[Handed]) -> None:
    """Move records from the front of the queue into the batch, and to `sent`, until the batch is full."""
    while queue:
        record = queue[0]
        if record.is_withdrawn:
            queue.popleft()
            continue
        if batch.append(timestamp=None, key=None, value=record.value, headers=record.headers) is None:
            if not sent:  # as the client is, it takes the first record whatever its size
                sent.append(queue.popleft())
                raise ValueError(f"no batch takes a record of {len(record.value)} bytes")
            return
        record.has_left = True
        sent.append(queue.popleft())
