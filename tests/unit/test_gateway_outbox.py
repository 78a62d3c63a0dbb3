"""Outbox: whatever goes wrong on the way to the producer, every record hears of it and the next ones leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.outbox import Handed, Outbox


class Gone(Exception):  # noqa: N818  # what a client may raise, whatever its name
    pass


def refuse() -> Any:
    raise Gone


@pytest.mark.parametrize(("producer", "partition_count"), [(refuse, lambda: 1), (object, refuse), (object, lambda: 1)])
async def test_records_hear_of_a_failure_before_anything_was_sent(
    producer: Callable[[], Any], partition_count: Callable[[], int]
) -> None:
    told: list[BaseException] = []
    ended: asyncio.Queue[Handed] = asyncio.Queue()
    outbox = Outbox("t", producer=producer, partition_count=partition_count, on_error=told.append)
    for value in (b"a", b"b"):
        outbox.put(Handed(value, [], ended.put_nowait))
    async with asyncio.timeout(5):
        records = [await ended.get() for _ in range(2)]
        await outbox.flush()
    assert all(record.error is not None for record in records)
    assert len(told) == 2
    outbox.put(Handed(b"c", [], ended.put_nowait))  # and it goes on
    async with asyncio.timeout(5):
        assert (await ended.get()).has_ended
        await outbox.flush()
    with pytest.raises(RuntimeError, match="no place"):
        records[0].place()


class Batch:
    """A batch of `size` records."""

    def __init__(self, size: int) -> None:
        self.values: list[bytes] = []
        self._size = size

    def append(self, *, timestamp: None, key: None, value: bytes, headers: Any) -> object | None:
        if len(self.values) == self._size:
            return None
        self.values.append(value)
        return object()


class Producer:
    """Takes a batch when it is told to."""

    def __init__(self, size: int = 2) -> None:
        self.sent: list[list[bytes]] = []
        self.taken = asyncio.Event()
        self.on_its_way = asyncio.Event()
        self._size = size

    def create_batch(self) -> Batch:
        return Batch(self._size)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> Any:
        self.sent.append(batch.values)
        self.on_its_way.set()

        async def acknowledge() -> Any:
            await self.taken.wait()
            return type("Metadata", (), {"partition": partition, "offset": 10, "timestamp": 7})

        return acknowledge()


def outbox_of(producer: Producer) -> Outbox:
    return Outbox("t", producer=lambda: producer, partition_count=lambda: 1, on_error=lambda error: None)


async def test_what_is_withdrawn_before_it_left_is_never_sent_and_what_has_left_cannot_be() -> None:
    producer, ended = Producer(), list[Handed]()
    outbox = outbox_of(producer)
    records = [Handed(value, [], ended.append) for value in (b"a", b"b", b"c", b"d", b"e")]
    for record in records:
        outbox.put(record)
    await producer.on_its_way.wait()
    assert not records[0].withdraw()
    assert records[2].withdraw()
    assert records[2].withdraw()
    assert records[4].withdraw()
    producer.taken.set()
    await outbox.flush()
    assert producer.sent == [[b"a", b"b"], [b"d"]]
    assert ended == [records[0], records[1], records[3]]
    assert [record.place()[1] for record in ended] == [10, 11, 10]
    assert not records[0].withdraw()


async def test_a_queue_that_was_withdrawn_as_a_whole_ends() -> None:
    producer = Producer()
    outbox = outbox_of(producer)
    record = Handed(b"a", [], lambda handed: None)
    outbox.put(record)
    assert record.withdraw()
    async with asyncio.timeout(5):
        await outbox.flush()
    assert producer.sent == []


async def test_what_waits_fails_at_once_and_what_is_under_way_goes_on() -> None:
    producer, ended = Producer(), list[Handed]()
    outbox = outbox_of(producer)
    records = [Handed(value, [], ended.append) for value in (b"a", b"b", b"c", b"d")]
    for record in records:
        outbox.put(record)
    await producer.on_its_way.wait()
    assert records[3].withdraw()
    outbox.fail_waiting(Gone())
    assert ended == [records[2]]
    assert isinstance(records[2].error, Gone)
    producer.taken.set()
    await outbox.flush()
    assert producer.sent == [[b"a", b"b"]]
    assert records[0].error is None
    assert records[0].has_ended


async def test_it_is_known_how_long_a_batch_has_been_under_way() -> None:
    producer = Producer()
    outbox = outbox_of(producer)
    assert outbox.overdue_s(1e12) == 0
    outbox.put(Handed(b"a", [], lambda handed: None))
    await producer.on_its_way.wait()
    assert outbox.overdue_s(time.monotonic() + 5) >= 5
    producer.taken.set()
    await outbox.flush()
    assert outbox.overdue_s(1e12) == 0
