"""Sizing: how many of the queued requests ride in one batch, so that deadlines are met. Pure; keeps no queue.

The longer a batch, the later all in it end, so the nearest deadline limits its size. Where that leaves room for all
there is (up to the maximum), nothing more is to decide. Where not:
- a smaller batch leaves, if whoever is left behind makes it in a full batch right after, with some time to spare:
  then all are met, and no pressure builds up;
- otherwise there is more than can be met. Small batches would make the least of the instance just then, and the next
  nearest deadline would make the next batch small again. So those with too near a deadline for a batch of what is
  there are refused, until the queue has once been emptied. This serves the most of them (see batching_sim.py).
Requests without a deadline can wait: nobody is refused for their sake, nor for the sake of a lower priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from workers.entry import Entry
from workers.timetable import NEVER_US

T = TypeVar("T")

# Of a full batch's duration, the time to spare. Without it a load just above what can be met would leave every batch a
# little smaller than the one before, until many have to be refused at once (measured with batching_sim.py).
_SPARE = 4


class Durations(Protocol):
    """How long batches take; see duration.py."""

    def estimate_us(self, rows: int) -> int | None:
        """How long a batch of so many rows will take; None while that is unknown."""

    def rows_within(self, budget_us: int) -> int:
        """The most rows that end within the budget."""


@dataclass(slots=True)
class Sized(Generic[T]):
    """The requests of a batch in order, may be none, and those refused for it."""

    batch: list[Entry[T]] = field(default_factory=list)
    refused: list[Entry[T]] = field(default_factory=list)
    is_overloaded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """When a batch starts, the most rows it may have, and how long it will take.

    `aged_us`: what arrived by then counts as of the highest level.
    """

    start_us: int
    cap_rows: int
    durations: Durations
    aged_us: int

    def size(self, queued: Sequence[Entry[T]], *, is_overloaded: bool) -> Sized[T]:
        """A batch of the first of `queued`: requests in the order in which they ride, two batches' worth if there are.

        Never above the maximum, but for a request that is larger alone. A deadline that is out of reach already does
        not limit: what becomes of such a request is decided elsewhere.
        """
        if not queued:
            return Sized()
        rank = queued[0].rank(self.aged_us)
        top = list(takewhile(lambda entry: entry.rank(self.aged_us) == rank, queued))
        sized = self._size_top(top, is_overloaded)
        if len(sized.batch) + len(sized.refused) == len(top):  # nobody of the highest level is left behind
            self._grow(sized.batch, queued[len(top) :])
        taken = len(sized.batch) + len(sized.refused)
        sized.is_overloaded = sized.is_overloaded and any(entry.deadline_us is not None for entry in queued[taken:])
        return sized

    def _size_top(self, top: Sequence[Entry[T]], is_overloaded: bool) -> Sized[T]:
        full, rows = self._packed(top)
        end_us = self._end_us(rows)
        if not any(self._limit_us(entry) < end_us for entry in full):
            return Sized(full, is_overloaded=is_overloaded)
        small: list[Entry[T]] = []
        rows = self._grow(small, top)
        if not is_overloaded and self._are_met_next(top[len(small) :], rows):
            return Sized(small)
        return self._without_nearest(top)

    def _packed(self, entries: Sequence[Entry[T]]) -> tuple[list[Entry[T]], int]:
        """The first that fit into a batch, at least one, and their rows."""
        rows = 0
        for count, entry in enumerate(entries):
            if count and rows + entry.rows > self.cap_rows:
                return list(entries[:count]), rows
            rows += entry.rows
        return list(entries), rows

    def _grow(self, batch: list[Entry[T]], entries: Sequence[Entry[T]]) -> int:
        """Add the first of `entries` to a batch while it fits and no deadline is missed by that. Returns the rows."""
        rows = sum(entry.rows for entry in batch)
        nearest_us = min((self._limit_us(entry) for entry in batch), default=NEVER_US)
        for entry in entries:
            nearest_us = min(nearest_us, self._limit_us(entry))
            if (batch and rows + entry.rows > self.cap_rows) or self._end_us(rows + entry.rows) > nearest_us:
                break
            batch.append(entry)
            rows += entry.rows
        return rows

    def _are_met_next(self, left: Sequence[Entry[T]], rows: int) -> bool:
        """Whether those left behind by a batch of `rows` fit into the next one, and make it well if that is full."""
        limits_us = [(entry.rows, self._limit_us(entry)) for entry in left if entry.deadline_us is not None]
        full_us = self._took_us(self.cap_rows)
        end_us = self._end_us(rows) + full_us + full_us // _SPARE
        return sum(rows for rows, _ in limits_us) <= self.cap_rows and all(at_us >= end_us for _, at_us in limits_us)

    def _without_nearest(self, top: Sequence[Entry[T]]) -> Sized[T]:
        """A batch as large as there is, and those in front who would miss their deadlines in it refused."""
        sized: Sized[T] = Sized(is_overloaded=True)
        left_rows = sum(entry.rows for entry in top)
        rows = 0
        for entry in top:
            if sized.batch and rows + entry.rows > self.cap_rows:
                break
            if self._limit_us(entry) < self._end_us(min(left_rows, self.cap_rows)):
                sized.refused.append(entry)
                left_rows -= entry.rows
            else:
                sized.batch.append(entry)
                rows += entry.rows
        return sized

    def _limit_us(self, entry: Entry[T]) -> int:
        """The deadline that a batch with this request must keep."""
        deadline_us = entry.deadline_us
        if deadline_us is None or deadline_us < self._end_us(entry.rows):
            return NEVER_US
        return deadline_us

    def _end_us(self, rows: int) -> int:
        return self.start_us + self._took_us(rows)

    def _took_us(self, rows: int) -> int:
        return self.durations.estimate_us(rows) or 0
