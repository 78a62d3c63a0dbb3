"""Receipts: what was delivered, begun, acknowledged and given back; the same for every Intake.

Must not know where records come from: that is workers/group_intake.py and workers/range_intake.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from schemas.record import Origin
from workers.delivery import Delivery, Partition


class Receipts:
    """The part of an Intake that the engine tells of its work."""

    def __init__(self) -> None:
        self._released: list[Delivery] = []
        self._idle = asyncio.Event()  # set whenever nothing runs any more of a partition that is given up

    def start(self, delivery: Delivery) -> None:
        """Work on this record begins."""
        partition = delivery.partition
        partition.tracker.start(delivery.offset)
        if not delivery.running:
            delivery.running = True
            partition.running += 1

    def acknowledge(self, delivery: Delivery) -> None:
        """The record's outcome is durable, or part of the transaction that is about to be committed."""
        delivery.partition.tracker.acknowledge(delivery.offset)
        self._end(delivery)

    def release(self, delivery: Delivery) -> None:
        """Hand the record out again."""
        self._end(delivery)
        self._released.append(delivery)

    def _end(self, delivery: Delivery) -> None:
        if delivery.running:
            delivery.running = False
            partition = delivery.partition
            partition.running -= 1
            if partition.lost and not partition.running:
                self._idle.set()

    def _take_released(self) -> list[Delivery]:
        released, self._released = self._released, []
        return [delivery for delivery in released if not delivery.partition.lost]


def delivery_of(partition: Partition, record: Any, *, without: Collection[str] = ()) -> Delivery:
    """A record of Kafka as it is handed to the engine, without the headers of these names."""
    headers = [header for header in record.headers if header[0] not in without] if without else record.headers
    origin = Origin(partition.topic, partition.number, record.offset)
    return Delivery(partition, origin, record.timestamp, headers, record.value)
