"""Outbox: whatever goes wrong on the way to the producer, every record hears of it and the next ones leave."""

from __future__ import annotations

import asyncio
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
