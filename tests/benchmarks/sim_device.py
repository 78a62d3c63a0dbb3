"""The device of the batching simulator, and the run of a rule against it. Knows no rule.

`instances` copies of a model, each runs one batch at a time in a * rows + b. Requests are of one row. Events happen in
the order of their time: first what has ended, then what arrives, then the rule is asked for batches.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Device:
    """`row_us` is a, `base_us` is b; `slo_us`: an answer counts when it comes so soon after the request's arrival."""

    row_us: int
    base_us: int
    max_rows: int
    instances: int
    slo_us: int

    def run_us(self, rows: int) -> int:
        """How long a batch takes."""
        return self.row_us * rows + self.base_us

    @property
    def capacity_s(self) -> float:
        """Rows per second when every batch is full and none waits."""
        return self.instances * self.max_rows / self.run_us(self.max_rows) * 1e6


class Rule(Protocol):
    """When batches leave. Requests are known by their index in the order of arrival."""

    def add(self, request: int, now_us: int) -> None:
        """A request arrives; it may be refused by forgetting it."""

    def cut(self, now_us: int, instance: int) -> Sequence[int] | None:
        """The batch for an instance that is free, or None to wait."""

    def next_due(self, now_us: int) -> int | None:
        """When to ask again if nothing happens before."""

    def ended(self, rows: int, took_us: int) -> None:
        """A batch has run."""


@dataclass(slots=True)
class Run:
    """What became of each request: when its answer came, and which were never run."""

    answered_us: dict[int, int] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)

    def on_time(self, arrivals: Sequence[int], slo_us: int) -> int:
        """Requests answered within the SLO."""
        return sum(1 for request, at_us in self.answered_us.items() if at_us - arrivals[request] <= slo_us)


def simulate(rule: Rule, arrivals: Sequence[int], device: Device) -> Run:
    """Run until nothing arrives, runs or is due any more. Raises AssertionError for a request that runs twice."""
    run = Run()
    free = list(range(device.instances))
    running: list[tuple[int, int, Sequence[int]]] = []  # (end, instance, batch)
    coming = 0
    due_us: int | None = None
    while True:
        moments = [running[0][0]] if running else []
        if coming < len(arrivals):
            moments.append(arrivals[coming])
        if due_us is not None and free:
            moments.append(due_us)
        if not moments:
            return run
        now_us = min(moments)
        while running and running[0][0] <= now_us:
            _, instance, batch = heapq.heappop(running)
            free.append(instance)
            rule.ended(len(batch), device.run_us(len(batch)))
        while coming < len(arrivals) and arrivals[coming] <= now_us:
            rule.add(coming, now_us)
            coming += 1
        for instance in sorted(free):
            cut = rule.cut(now_us, instance)
            if not cut:
                continue
            free.remove(instance)
            _start(run, cut, now_us, device)
            heapq.heappush(running, (now_us + device.run_us(len(cut)), instance, cut))
        due_us = rule.next_due(now_us)
        if due_us is not None and due_us <= now_us:
            due_us = now_us + 1000  # it was asked just now and had its reason; ask again at the next tick


def _start(run: Run, batch: Sequence[int], now_us: int, device: Device) -> None:
    assert len(batch) <= device.max_rows
    end_us = now_us + device.run_us(len(batch))
    for request in batch:
        assert request not in run.answered_us
        run.answered_us[request] = end_us
    run.batches.append(len(batch))
