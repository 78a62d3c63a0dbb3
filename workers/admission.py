"""Admission: the level of each request, how many of a level may wait, and how long. Pure; keeps no queue of its own."""

from __future__ import annotations

from typing import Generic, TypeVar

from workers.batch_policy import BatchPolicy
from workers.entry import Entry
from workers.timetable import Timetable

T = TypeVar("T")


class Admission(Generic[T]):
    """Counts the queued requests of each level. `timeouts`: when each has waited as long as its queue policy allows."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._queued: dict[int, int] = {}  # requests by level
        self.timeouts: Timetable[T] = Timetable()

    def admit(self, entry: Entry[T]) -> bool:
        """Give a request its level and its timeout; False if its level's queue is full."""
        policy = self._policy
        level = policy.level(entry.priority)
        queued = self._queued.get(level, 0)
        queue_policy = policy.queue_policy(level)
        if queue_policy is not None and 0 < queue_policy.max_queue_size <= queued:
            return False
        entry.level = level
        self._queued[level] = queued + 1
        timeout_us = policy.timeout_us(level, entry.timeout_us)
        if timeout_us:
            self.timeouts.put(entry.arrived_us + timeout_us, entry)
        return True

    def is_to_reject(self, entry: Entry[T]) -> bool:
        """Whether a request that has timed out is to be refused, and not delayed."""
        queue_policy = self._policy.queue_policy(entry.level)
        return queue_policy is None or queue_policy.timeout_action == "reject"

    def leave(self, entry: Entry[T]) -> None:
        """A request that was admitted has left the queue."""
        self._queued[self._policy.level(entry.priority)] -= 1
