"""Ceiling: how many rows an instance's memory takes, learnt from running out of it and forgotten slowly.

Memory is shared with others and comes back: after a quiet time the ceiling is raised by a step, to see. A step that
was one too many goes back to what is known to pass, and the next one waits twice as long. Pure: the clock is passed
in, microseconds of any one clock. Not for several threads.
"""

from __future__ import annotations

_QUIET_US = 10_000_000
_LAST_QUIET_US = 32 * _QUIET_US  # about five minutes between two vain attempts, at the most
_STEP = 4  # a quarter of the ceiling, at least one row


class Ceiling:
    """One instance's limit of rows per batch, from `max_rows` down to 1 and up again.

    A single request of more rows than that is still run: it cannot be cut.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max(1, max_rows)
        self._limit_rows = self._max_rows
        self._passed_rows = 0  # the largest batch that has run since memory last was scarcer than thought
        self._quiet_us = _QUIET_US
        self._raise_us = 0  # when the limit goes up next

    def rows(self, now_us: int) -> int:
        """The most rows that a batch should have now; `max_rows` while memory has sufficed."""
        while self._limit_rows < self._max_rows and now_us >= self._raise_us:
            self._limit_rows = min(self._max_rows, self._limit_rows + max(1, self._limit_rows // _STEP))
            self._raise_us += self._quiet_us
        return self._limit_rows

    def note_passed(self, rows: int) -> None:
        """A batch of this many rows has run."""
        if rows > self._passed_rows:
            self._passed_rows = rows

    def note_out_of_memory(self, rows: int, now_us: int) -> None:
        """A batch of this many rows had no memory: from now on half of it, or what is known to pass."""
        if rows > self._limit_rows:  # it was cut under an earlier ceiling, or is one request: nothing new
            return
        if rows <= self._passed_rows:  # it passed before: others have taken memory since, nothing is known any more
            self._passed_rows = 0
        half_rows = max(1, rows // 2)
        is_vain_step = half_rows <= self._passed_rows
        self._quiet_us = min(2 * self._quiet_us, _LAST_QUIET_US) if is_vain_step else _QUIET_US
        self._limit_rows = max(half_rows, self._passed_rows)
        self._raise_us = now_us + self._quiet_us
