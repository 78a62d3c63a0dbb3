"""Deadline: a moment after which work must not start. Wall clock on the wire, the caller's clock in here.

Knows no clock of its own: `now_ms` is always passed in.
"""

from __future__ import annotations

import msgspec


class Deadline(msgspec.Struct, frozen=True, order=True, gc=False):
    """A point in time in milliseconds since the Unix epoch."""

    at_ms: int

    @classmethod
    def after(cls, budget_ms: int, *, now_ms: int) -> Deadline:
        """The deadline that is `budget_ms` from now."""
        return cls(now_ms + budget_ms)

    def remaining_ms(self, now_ms: int) -> int:
        """Milliseconds left, never negative."""
        return max(0, self.at_ms - now_ms)

    def passed(self, now_ms: int) -> bool:
        """True from the deadline on: the instant itself is already too late."""
        return now_ms >= self.at_ms
