"""BrokerClock: when a record arrived at its broker, told in this process's clock. Pure.

Broker and worker clocks differ. Every observation (received here - appended there) is the difference of the clocks
plus a delay that is never negative, so the smallest one seen is the best estimate of the difference. Two windows
follow slow drift: the estimate is the minimum of the present and the previous one. A worker that wakes to a backlog
sees only old records at first; a seed, learnt from an append of its own, tells it how old they are until it has seen
enough of the partition itself.
"""

from __future__ import annotations

_SEEDED = 16  # observations after which a partition's own estimate stands alone


class BrokerClock:
    """Learns one broker's clock. Ours is monotonic and in microseconds, the broker's appends are in milliseconds."""

    def __init__(self, *, window_us: int = 60_000_000, seed_us: int | None = None) -> None:
        """`seed_us`: a first guess of (our clock - the broker's), perhaps of another broker of the cluster."""
        self._window_us = window_us
        self._seed_us = seed_us
        self._observed = 0
        self._window_end_us: int | None = None
        self._previous_us: int | None = None
        self._current_us: int | None = None

    def observe(self, appended_ms: int, received_us: int) -> None:
        """Learn from a record received, or an append acknowledged, at `received_us`."""
        difference_us = received_us - appended_ms * 1000
        self._observed += 1
        if self._window_end_us is None or received_us >= self._window_end_us:
            self._window_end_us = received_us + self._window_us
            self._previous_us, self._current_us = self._current_us, difference_us
        elif self._current_us is None or difference_us < self._current_us:
            self._current_us = difference_us

    def arrival_us(self, appended_ms: int, now_us: int) -> int:
        """When a record appended at `appended_ms` arrived, in our clock; never later than now."""
        offset_us = self._current_us
        if offset_us is None:
            return now_us
        if self._previous_us is not None and self._previous_us < offset_us:
            offset_us = self._previous_us
        if self._seed_us is not None and self._observed < _SEEDED and self._seed_us < offset_us:
            offset_us = self._seed_us
        return min(now_us, appended_ms * 1000 + offset_us)
