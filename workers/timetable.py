"""Timetable: requests by a moment that concerns each. Those that have left the queue are skipped when they are met."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from workers.entry import Entry

T = TypeVar("T")

NEVER_US = 1 << 62


class Timetable(Generic[T]):
    """A heap of moments in microseconds; of equal ones, the one put in first comes first."""

    __slots__ = ("_count", "_moments")

    def __init__(self) -> None:
        self._moments: list[tuple[int, int, Entry[T]]] = []
        self._count = 0

    def put(self, at_us: int, entry: Entry[T]) -> None:
        """Note a request for a moment."""
        self._count += 1
        heapq.heappush(self._moments, (at_us, self._count, entry))

    def first(self) -> Entry[T] | None:
        """The request with the nearest moment."""
        moments = self._moments
        while moments and moments[0][2].gone:
            heapq.heappop(moments)
        return moments[0][2] if moments else None

    def first_us(self) -> int:
        """The nearest moment, NEVER_US if there is none."""
        return NEVER_US if self.first() is None else self._moments[0][0]

    def take_due(self, now_us: int) -> Entry[T] | None:
        """Take out the first whose moment has come."""
        if self._moments and self.first_us() <= now_us:
            return heapq.heappop(self._moments)[2]
        return None
