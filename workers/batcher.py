"""Batcher: forms the micro-batches of one model version. Pure: the clock is passed in, nothing here waits.

`add` a request, ask `next_due` when to look again, `cut` a batch, `take_expired` what is too late to run. Times are
microseconds of one monotonic clock; a request's age counts from its arrival at the broker (see arrival.py). Must not
know Kafka, tensors, threads or asyncio.

Rules (design section 6): a batch is cut when it is full (or reaches the largest preferred size), or when its oldest
request has waited `max_queue_delay_us` since its arrival, and an instance is free. While every instance is busy only
full batches leave, so that they can be prepared ahead; anything smaller keeps growing. Requests are grouped by
signature, so that another shape neither closes nor poisons a batch; the group whose oldest request is oldest goes
first, and within a group the order is that of arrival here.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """How batches of one model are formed.

    `max_batch_rows` >= 1. `max_queue_delay_us` 0: never wait on purpose. `preferred_rows`: sizes to close a batch at
    while the delay has not run out; the largest of them counts as full, none given means `max_batch_rows`. `alone`:
    every request is a batch of its own, as for a model without dynamic batching.
    """

    max_batch_rows: int
    max_queue_delay_us: int = 0
    preferred_rows: tuple[int, ...] = ()
    alone: bool = False

    @property
    def full_rows(self) -> int:
        """The size at which waiting any longer gains nothing."""
        if self.alone:
            return 1
        return max(self.preferred_rows, default=self.max_batch_rows)


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One request in the queue.

    `arrived_us` is its arrival at the broker in this process's clock, `deadline_us` the moment from which it must not
    start. `gone` is set once it has left the queue, by whatever way.
    """

    payload: T
    rows: int
    signature: Hashable
    arrived_us: int
    deadline_us: int | None = None
    priority: int = 0
    gone: bool = False


@dataclass(slots=True, eq=False)
class _Group(Generic[T]):
    entries: deque[Entry[T]] = field(default_factory=deque)
    rows: int = 0

    def oldest_us(self) -> int:
        """Arrival of the first entry; only for a group that has rows."""
        entries = self.entries
        while entries[0].gone:
            entries.popleft()
        return entries[0].arrived_us


class Batcher(Generic[T]):
    """The queue of one model version. Not thread-safe: it belongs to the event loop."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._groups: dict[Hashable, _Group[T]] = {}
        self._deadlines: list[tuple[int, int, Entry[T]]] = []
        self._added = 0
        self.rows = 0
        self.requests = 0

    def add(self, entry: Entry[T]) -> None:
        """Queue a request of 1 to `max_batch_rows` rows. Raises ValueError for any other number."""
        rows = entry.rows
        if not 0 < rows <= self.policy.max_batch_rows:
            raise ValueError(f"a request of {rows} rows cannot ride in batches of 1 to {self.policy.max_batch_rows}")
        group = self._groups.get(entry.signature)
        if group is None:
            group = self._groups[entry.signature] = _Group()
        group.entries.append(entry)
        group.rows += rows
        self.rows += rows
        self.requests += 1
        if entry.deadline_us is not None:
            self._added += 1
            heapq.heappush(self._deadlines, (entry.deadline_us, self._added, entry))

    def remove(self, entry: Entry[T]) -> bool:
        """Take a request out, for example one that was cancelled. False if it had left already."""
        if entry.gone:
            return False
        entry.gone = True
        group = self._groups[entry.signature]
        group.rows -= entry.rows
        self.rows -= entry.rows
        self.requests -= 1
        if not group.rows:
            del self._groups[entry.signature]
        return True

    def take_expired(self, now_us: int) -> list[Entry[T]]:
        """Take out every request whose deadline has passed. They must be answered, and never run."""
        expired = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_us or deadlines[0][2].gone):
            entry = heapq.heappop(deadlines)[2]
            if self.remove(entry):
                expired.append(entry)
        return expired

    def next_due(self, *, instance_free: bool = True) -> int | None:
        """When to look again if nothing is added before: a delay runs out, or a deadline. None: not before a change.

        While no instance is free only deadlines matter: nothing that is due could leave.
        """
        if not self.rows:
            return None
        deadline_us = self._next_deadline()
        if not instance_free:
            return deadline_us
        due_us = min(group.oldest_us() for group in self._groups.values()) + self.policy.max_queue_delay_us
        return due_us if deadline_us is None else min(due_us, deadline_us)

    def cut(self, now_us: int, *, instance_free: bool = True, flush: bool = False) -> list[Entry[T]] | None:
        """The next batch in order of arrival, or None if none may leave now.

        `instance_free`: something can run it at once; otherwise only a full batch leaves, and none while a request with
        a deadline is queued, for that could pass before the batch runs. `flush`: whatever is queued leaves without
        waiting for its delay, as a drain wants. Expired requests are never in a batch, but are only
        handed out by `take_expired`: call that first.
        """
        if not instance_free and self._next_deadline() is not None:
            return None
        group = self._choose(now_us, instance_free, flush)
        if group is None:
            return None
        overdue = flush or group.oldest_us() + self.policy.max_queue_delay_us <= now_us
        return self._take(group, self._size(group, overdue))

    def _next_deadline(self) -> int | None:
        while self._deadlines and self._deadlines[0][2].gone:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _choose(self, now_us: int, instance_free: bool, flush: bool) -> _Group[T] | None:
        policy = self.policy
        best: _Group[T] | None = None
        best_us = 0
        for group in self._groups.values():
            oldest_us = group.oldest_us()
            if best is not None and oldest_us >= best_us:
                continue
            is_full = group.rows >= policy.full_rows
            is_due = instance_free and (flush or oldest_us + policy.max_queue_delay_us <= now_us)
            if is_full or is_due:
                best, best_us = group, oldest_us
        return best

    def _size(self, group: _Group[T], overdue: bool) -> int:
        policy = self.policy
        if overdue or not policy.preferred_rows:
            return policy.max_batch_rows
        return policy.full_rows

    def _take(self, group: _Group[T], limit_rows: int) -> list[Entry[T]]:
        batch: list[Entry[T]] = []
        entries = group.entries
        alone = self.policy.alone
        rows = 0
        while entries:
            entry = entries[0]
            if entry.gone:
                entries.popleft()
                continue
            if rows + entry.rows > limit_rows and batch:
                break
            entries.popleft()
            entry.gone = True
            rows += entry.rows
            batch.append(entry)
            if rows >= limit_rows or alone:
                break
        group.rows -= rows
        self.rows -= rows
        self.requests -= len(batch)
        if not group.rows:
            del self._groups[batch[0].signature]
        return batch
