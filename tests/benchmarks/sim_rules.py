"""The rules that the batching simulator compares: ours, and our own writing of three others. Each knows the SLO.

Ours is the worker's Batcher with the DurationModel, as minutes of service leave it. The others are written after what
their projects document and do, and are told a and b where they use them. Settings come from outside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.sim_device import Device
from workers.batcher import Batcher, BatchPolicy, Entry
from workers.duration import DurationModel


@dataclass(frozen=True)
class Ours:
    """Setting: max_queue_delay_us."""

    delay_us: int = 0

    def rule(self, arrivals: Sequence[int], device: Device) -> OurRule:
        """The rule with this setting."""
        return OurRule(self, arrivals, device)


class OurRule:
    """The Batcher as a lane uses it, the SLO as each request's deadline."""

    def __init__(self, settings: Ours, arrivals: Sequence[int], device: Device) -> None:
        self._arrivals = arrivals
        self._slo_us = device.slo_us
        policy = BatchPolicy(max_batch_rows=device.max_rows, max_queue_delay_us=settings.delay_us)
        self._batcher: Batcher[int] = Batcher(policy)
        self._durations = DurationModel()
        for rows in (1, device.max_rows, device.max_rows // 2):
            self._durations.observe(rows, device.run_us(rows))

    def add(self, request: int, now_us: int) -> None:
        """Queue."""
        self._batcher.add(Entry(request, 1, None, now_us, self._arrivals[request] + self._slo_us))

    def cut(self, now_us: int, instance: int) -> Sequence[int] | None:
        """Refuse what cannot be met, then the next batch."""
        self._batcher.take_refused(now_us, durations=self._durations)
        batch = self._batcher.cut(now_us, durations=self._durations)
        return None if batch is None else [entry.payload for entry in batch]

    def next_due(self, now_us: int) -> int | None:
        """The Batcher's."""
        return self._batcher.next_due(durations=self._durations)

    def ended(self, rows: int, took_us: int) -> None:
        """Learn."""
        self._durations.observe(rows, took_us)


@dataclass(frozen=True)
class FixedWindow:
    """Settings: wait up to `window_us` after the oldest request for a full batch; `max_queue`: more are turned away.

    0: no limit, as where the rule is found without one. It knows no deadlines.
    """

    window_us: int
    max_queue: int = 0

    def rule(self, arrivals: Sequence[int], device: Device) -> FixedWindowRule:
        """The rule with these settings."""
        return FixedWindowRule(self, arrivals, device)


class FixedWindowRule:
    """A batch leaves when it is full, or its oldest request has waited for the window."""

    def __init__(self, settings: FixedWindow, arrivals: Sequence[int], device: Device) -> None:
        self._settings = settings
        self._arrivals = arrivals
        self._max_rows = device.max_rows
        self._queue: deque[int] = deque()

    def add(self, request: int, now_us: int) -> None:
        """Queue, unless there is no room."""
        if not self._settings.max_queue or len(self._queue) < self._settings.max_queue:
            self._queue.append(request)

    def cut(self, now_us: int, instance: int) -> Sequence[int] | None:
        """A full batch, or what there is after the window."""
        due_us = self.next_due(now_us)
        if due_us is None or (due_us > now_us and len(self._queue) < self._max_rows):
            return None
        return _first(self._queue, self._max_rows)

    def next_due(self, now_us: int) -> int | None:
        """When the oldest has waited for the window."""
        return self._arrivals[self._queue[0]] + self._settings.window_us if self._queue else None

    def ended(self, rows: int, took_us: int) -> None:
        """Nothing is learnt."""


@dataclass(frozen=True)
class Triton:
    """Settings of dynamic_batching: the delay, and of the queue policy the timeout (REJECT) and the queue's size.

    All 0 is the default. Without a queue policy, as many batches are prepared ahead as there are instances; they are
    closed where the delay is 0, and grow where it is not.
    """

    delay_us: int = 0
    timeout_us: int = 0
    max_queue: int = 0

    def rule(self, arrivals: Sequence[int], device: Device) -> TritonRule:
        """The rule with these settings."""
        return TritonRule(self, arrivals, device)


class TritonRule:
    """One queue; the delay is a minimum wait for less than a preferred size, which is the maximum by default."""

    def __init__(self, settings: Triton, arrivals: Sequence[int], device: Device) -> None:
        self._settings = settings
        self._arrivals = arrivals
        self._device = device
        self._queue: deque[int] = deque()
        self._prepared: deque[Sequence[int]] = deque()

    def add(self, request: int, now_us: int) -> None:
        """Queue, unless there is no room; then close a batch ahead if that is what the settings make of it."""
        settings = self._settings
        if settings.max_queue and len(self._queue) >= settings.max_queue:
            return
        self._queue.append(request)
        is_ahead = not (settings.delay_us or settings.timeout_us or settings.max_queue)
        if is_ahead and len(self._prepared) < self._device.instances:
            self._prepared.append(_first(self._queue, self._device.max_rows))

    def cut(self, now_us: int, instance: int) -> Sequence[int] | None:
        """The next batch that was closed, or one closed now."""
        if self._prepared:
            batch = self._prepared.popleft()
            if self._queue:
                self._prepared.append(_first(self._queue, self._device.max_rows))
            return batch
        self._reject(now_us)
        if not self._queue:
            return None
        is_full = len(self._queue) >= self._device.max_rows
        if not is_full and self._arrivals[self._queue[0]] + self._settings.delay_us > now_us:
            return None
        return _first(self._queue, self._device.max_rows)

    def next_due(self, now_us: int) -> int | None:
        """When the oldest has waited for the delay."""
        return self._arrivals[self._queue[0]] + self._settings.delay_us if self._queue else None

    def ended(self, rows: int, took_us: int) -> None:
        """Nothing is learnt."""

    def _reject(self, now_us: int) -> None:
        timeout_us = self._settings.timeout_us
        while timeout_us and self._queue and self._arrivals[self._queue[0]] + timeout_us < now_us:
            self._queue.popleft()


@dataclass(frozen=True)
class Bento:
    """Setting: max_latency_ms, here in microseconds; 60 s is the default."""

    max_latency_us: int = 60_000_000

    def rule(self, arrivals: Sequence[int], device: Device) -> BentoRule:
        """The rule with this setting."""
        return BentoRule(self, arrivals, device)


class BentoRule:
    """A dispatcher and a queue per instance, requests dealt out in turn, looked at every millisecond.

    It knows a and b from the outset, where the original learns them in its first batches. `wait` is the mean wait of
    the oldest requests of its last 50 batches.
    """

    _TICK_US = 1000

    def __init__(self, settings: Bento, arrivals: Sequence[int], device: Device) -> None:
        self._limit_us = settings.max_latency_us
        self._arrivals = arrivals
        self._device = device
        self._queues: list[deque[int]] = [deque() for _ in range(device.instances)]
        self._waits: list[deque[int]] = [deque(maxlen=50) for _ in range(device.instances)]

    def add(self, request: int, now_us: int) -> None:
        """Queue at one of the dispatchers."""
        self._queues[request % len(self._queues)].append(request)

    def cut(self, now_us: int, instance: int) -> Sequence[int] | None:
        """Cancel the oldest while the whole queue would take too long; then wait if more are worth it, or go."""
        queue, waits = self._queues[instance], self._waits[instance]
        row_us, base_us = self._device.row_us, self._device.base_us
        while len(queue) > 1 and now_us - self._arrivals[queue[0]] + row_us * len(queue) + base_us >= self._limit_us:
            queue.popleft()
        if not queue:
            return None
        newest_us = now_us - self._arrivals[queue[-1]]
        wait_us = sum(waits) / len(waits) if waits else 0.0
        count = len(queue)
        if count < self._device.max_rows and count * (newest_us + self._TICK_US + row_us) <= 0.95 * wait_us:
            return None
        waits.append(now_us - self._arrivals[queue[0]])
        return _first(queue, self._device.max_rows)

    def next_due(self, now_us: int) -> int | None:
        """The next tick."""
        return now_us + self._TICK_US if any(self._queues) else None

    def ended(self, rows: int, took_us: int) -> None:
        """What would be learnt is known."""


def _first(queue: deque[int], count: int) -> list[int]:
    return [queue.popleft() for _ in range(min(count, len(queue)))]
