"""Clocks: when each queued request expires: it had to begin by then, or its answer is of no use any more. Pure.

The two are kept apart: only deadlines size batches and refuse early, for how long a batch takes says nothing about
when it begins. Must not know the queue, Kafka or threads.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from workers.batch_sizing import Durations
from workers.entry import Entry
from workers.refusal import Refusal
from workers.timetable import NEVER_US, Timetable

T = TypeVar("T")

# Before a request must have begun its batch leaves: timers are late, and a batch is assembled and handed over first.
_START_SPARE_US = 5000


class Clocks(Generic[T]):
    """The queued requests by deadline, and by the moment by which they must have begun."""

    __slots__ = ("deadlines", "starts")

    def __init__(self) -> None:
        self.deadlines: Timetable[T] = Timetable()
        self.starts: Timetable[T] = Timetable()

    def put(self, entry: Entry[T]) -> None:
        """Note a request's moments."""
        if entry.deadline_us is not None:
            self.deadlines.put(entry.deadline_us, entry)
        if entry.start_by_us is not None:
            self.starts.put(entry.start_by_us, entry)

    def take_passed(self, now_us: int) -> tuple[Entry[T], Refusal] | None:
        """Take out one whose moment has come."""
        if (entry := self.deadlines.take_due(now_us)) is not None:
            return entry, Refusal.EXPIRED
        if (entry := self.starts.take_due(now_us)) is not None:
            return entry, Refusal.UNSTARTED
        return None

    def next_refusal_us(self, durations: Durations | None) -> int:
        """When the next one is to be refused; with known durations, when the nearest deadline gets out of reach."""
        due_us = self.deadlines.first_us()
        nearest = self.deadlines.first()
        if nearest is not None and durations is not None:
            due_us -= (durations.estimate_us(nearest.rows) or 1) - 1
        return min(due_us, self.starts.first_us())

    def first_to_start(self) -> tuple[int, Entry[T] | None]:
        """Who must begin next, and when its batch is to leave for that."""
        entry = self.starts.first()
        if entry is None or entry.is_delayed:
            return NEVER_US, None
        return self.starts.first_us() - _START_SPARE_US, entry


def is_hopeless(entry: Entry[T], start_us: int, durations: Durations) -> bool:
    """Whether a batch of it alone, begun at `start_us`, would end after its deadline."""
    if entry.deadline_us is None:
        return False
    took_us = durations.estimate_us(entry.rows)
    return took_us is not None and start_us + took_us > entry.deadline_us
