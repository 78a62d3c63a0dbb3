"""A run of a Batcher against instances, driven only by what it says itself: arrivals, `next_due`, and batches' ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.batcher import Batcher, BatchPolicy, Entry, Refusal


@dataclass(frozen=True)
class Arrival:
    gap_us: int
    rows: int = 1
    shape: str = "A"
    ttl_us: int | None = None
    priority: int = 0
    timeout_us: int = 0
    start_us: int | None = None


@dataclass(frozen=True)
class Line:
    """A duration that is known exactly."""

    row_us: int
    base_us: int

    def estimate_us(self, rows: int) -> int | None:
        return self.row_us * rows + self.base_us

    def rows_within(self, budget_us: int) -> int:
        return max(0, (budget_us - self.base_us) // self.row_us)


@dataclass
class Ended:
    batches: list[tuple[int, list[Entry[int]]]] = field(default_factory=list)
    refused: list[tuple[int, Entry[int], Refusal]] = field(default_factory=list)


def entries_of(load: list[Arrival]) -> list[Entry[int]]:
    now_us = 0
    todo = []
    for index, arrival in enumerate(load):
        now_us += arrival.gap_us
        deadline_us = None if arrival.ttl_us is None else now_us + arrival.ttl_us
        start_by_us = None if arrival.start_us is None else now_us + arrival.start_us
        todo.append(
            Entry(
                index,
                arrival.rows,
                arrival.shape,
                now_us,
                deadline_us,
                arrival.priority,
                arrival.timeout_us,
                start_by_us,
            )
        )
    return todo


def run(policy: BatchPolicy, load: list[Arrival], took: Line, *, known: bool, limit_rows: int | None = None) -> Ended:
    """One instance. Asserts that the Batcher never asks to be woken in vain."""
    batcher: Batcher[int] = Batcher(policy)
    durations = took if known else None
    todo = entries_of(load)
    ended = Ended()
    now_us = free_us = 0
    while todo or batcher.rows:
        is_free = free_us <= now_us
        due_us = batcher.next_due(instance_free=is_free, durations=durations, limit_rows=limit_rows)
        moments = [todo[0].arrived_us] if todo else []
        moments += [free_us] if not is_free else []
        moments += [max(due_us, now_us)] if due_us is not None else []
        now_us = min(moments)  # fails where something is queued, and nothing will ever happen
        is_woken = due_us is not None and due_us <= now_us
        delayed_rows = batcher._delayed_rows
        while todo and todo[0].arrived_us <= now_us:
            entry = todo.pop(0)
            refusal = batcher.add(entry)
            if refusal is not None:
                ended.refused.append((now_us, entry, refusal))
        count = batcher.requests
        is_free = free_us <= now_us
        told = batcher.take_refused(now_us, instance_free=is_free, durations=durations, free_us=free_us)
        while (
            free_us <= now_us and (batch := batcher.cut(now_us, durations=durations, limit_rows=limit_rows)) is not None
        ):
            ended.batches.append((now_us, batch))
            free_us = now_us + (took.estimate_us(sum(entry.rows for entry in batch)) or 0)
        told += batcher.take_refused(now_us, instance_free=free_us <= now_us, durations=durations, free_us=free_us)
        ended.refused += [(now_us, entry, reason) for entry, reason in told]
        assert not is_woken or batcher.requests < count or batcher._delayed_rows != delayed_rows
    return ended
