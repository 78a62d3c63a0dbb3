"""Delivery and Intake: a record handed to the engine, and where records come from and are acknowledged.

Acknowledgement is per record and in any order. The consumer-group form is workers/group_intake.py; offline scoring
reads a bounded range, workers/range_intake.py. Knows no Kafka client and no batching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.record import Origin
from workers.acks import AckTracker
from workers.arrival import BrokerClock


@dataclass(slots=True, eq=False)
class Partition:
    """One life of one partition in this process: from being assigned until being lost.

    `lost`: no more work of it is to begin; what runs ends. `running`: records begun whose outcome is not durable yet.
    """

    topic: str
    number: int
    tracker: AckTracker
    clock: BrokerClock
    lost: bool = False
    running: int = 0


@dataclass(slots=True, eq=False)
class Delivery:
    """One record. `appended_ms` is the broker's clock (LogAppendTime)."""

    partition: Partition
    origin: Origin
    appended_ms: int
    headers: Sequence[tuple[str, bytes]]
    value: bytes | None
    running: bool = False

    @property
    def offset(self) -> int:
        """The record's offset in its partition."""
        return self.origin.offset


class Exhausted(Exception):  # noqa: N818  # the good end of a bounded range, no error
    """There is nothing more to fetch, and never will be."""


class Intake(Protocol):
    """A source of records that takes acknowledgements one by one."""

    async def fetch(self) -> list[Delivery]:
        """Wait for records and return at least one. Cancel-safe: a cancelled call has taken nothing.

        Raises Exhausted at the end of a bounded range.
        """
        ...

    def start(self, delivery: Delivery) -> None:
        """Work on this record begins."""
        ...

    def acknowledge(self, delivery: Delivery) -> None:
        """The record's outcome is durable. Comes to no account if its partition is not ours any more."""
        ...

    def release(self, delivery: Delivery) -> None:
        """The record was not worked on after all: hand it out again, here or by a later owner. Counts no attempt."""
        ...

    def pause(self, topic: str) -> None:
        """Deliver nothing more of `topic` until it is resumed; the group's membership goes on."""
        ...

    def resume(self, topic: str) -> None:
        """Deliver records of `topic` again."""
        ...
