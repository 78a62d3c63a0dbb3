"""Group: the queued requests of one signature, in the order in which they ride. Pure; decides nothing about batches."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import dropwhile, takewhile
from typing import Generic, TypeVar

from workers.entry import DELAYED_RANK, Entry

T = TypeVar("T")


class Group(Generic[T]):
    """Queues by level, ascending, and one for what is delayed. Requests that have left stay until they are met.

    `rows` counts those of live requests, `delayed_rows` those of them that are delayed; a group without any is to be
    thrown away. `is_overloaded`: more was queued than could be met, and since then somebody has always been waiting.
    """

    __slots__ = ("delayed_rows", "entries", "is_overloaded", "queues", "rows", "signature")

    def __init__(self, signature: Hashable) -> None:
        self.signature = signature
        self.entries: deque[Entry[T]] = deque()  # of the highest level; the only one where there are no levels
        self.queues: dict[int, deque[Entry[T]]] = {1: self.entries}
        self.rows = 0
        self.delayed_rows = 0
        self.is_overloaded = False

    def append(self, entry: Entry[T]) -> None:
        """Queue at the end of the entry's level, which may be that of what is delayed; the caller counts."""
        queue = self.queues.get(entry.level)
        if queue is None:
            queue = self.queues[entry.level] = deque()
            self.queues = dict(sorted(self.queues.items()))
        queue.append(entry)

    def oldest_us(self) -> int:
        """Arrival of the first that is not delayed, of all if all are. Only for a group that has rows."""
        if len(self.queues) == 1:
            entries = self.entries
            while entries[0].gone:
                entries.popleft()
            return entries[0].arrived_us
        heads: list[int] = []
        for rank, queue in self.queues.items():
            while queue and (queue[0].gone or queue[0].level != rank):
                queue.popleft()
            if queue and not (rank == DELAYED_RANK and heads):
                heads.append(queue[0].arrived_us)
        return min(heads)

    def take(self, limit_rows: int, *, alone: bool) -> list[Entry[T]]:
        """Take a batch out, the first at least; `alone`: only that. For a group of one level."""
        batch: list[Entry[T]] = []
        entries = self.entries
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
        self.rows -= rows
        return batch

    def in_order(self, aged_us: int) -> Iterator[Entry[T]]:
        """The live requests in the order in which they ride, without taking them out.

        First those that arrived by `aged_us`, in order of arrival; then by level; then what is delayed. Within a level
        the order is always that in which they came. The group must not be added to meanwhile.
        """
        if len(self.queues) == 1:
            return (entry for entry in self.entries if not entry.gone)
        return self._merged(aged_us)

    def _merged(self, aged_us: int) -> Iterator[Entry[T]]:
        def is_aged(entry: Entry[T]) -> bool:
            return entry.arrived_us <= aged_us

        levels = [rank for rank in self.queues if rank != DELAYED_RANK]
        yield from heapq.merge(*(takewhile(is_aged, self._live(rank)) for rank in levels), key=_arrived_us)
        for rank in levels:
            yield from dropwhile(is_aged, self._live(rank))
        yield from self._live(DELAYED_RANK)

    def _live(self, rank: int) -> Iterator[Entry[T]]:
        return (entry for entry in self.queues.get(rank, ()) if not entry.gone and entry.level == rank)


def _arrived_us(entry: Entry[T]) -> int:
    return entry.arrived_us
