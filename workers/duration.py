"""DurationModel: how long a batch takes on one instance, learnt from those that ran: row_us * rows + base_us.

Least squares that forget: each batch weighs a little less than the one after it, so that a change of clock rate,
neighbours or input is followed. Pure: no clock, nothing is waited for. Must not know batches or backends.
"""

from __future__ import annotations

import math

UNLIMITED_ROWS = 1 << 30

_MEMORY = 0.97  # weight of a batch against the next: what is older than about 100 batches hardly counts
_MIN_OBSERVATIONS = 3  # the first ones allocate and compile
_OUTLIER_SPREADS = 5.0  # a batch that is further off than this many mean deviations is not learnt from
_MIN_SPREAD = 0.02  # a device that was never off by more would make everything an outlier
_CHANGE_OBSERVATIONS = 5  # so many outliers in a row, all to the same side, are a change
_CHANGE_MEMORY = 0.02  # what the past still weighs then
_MIN_SIZE_SPREAD = 0.03  # batch sizes closer together than this share of their mean say nothing about the slope


class DurationModel:
    """The learnt duration of one instance. Not thread-safe: it belongs to the event loop."""

    def __init__(self) -> None:
        self._weight = self._rows = self._took = self._rows_rows = self._rows_took = 0.0
        self._observations = 0
        self._spread = 0.0  # mean deviation from the estimate, as a share of it
        self._outliers: list[tuple[int, int]] = []  # rows and duration of the last ones, if nothing else came since
        self._are_outliers_slow = False
        self._row_us = self._base_us = 0.0
        self._knows_slope = False

    def observe(self, rows: int, took_us: int) -> None:
        """Learn from a batch of `rows` >= 1 rows that took `took_us` >= 0. Batches that failed are not for here."""
        self._observations += 1
        if self._observations <= _MIN_OBSERVATIONS or not self._is_outlier(rows, took_us):
            self._outliers.clear()
            self._add(rows, took_us)
        elif len(self._outliers) >= _CHANGE_OBSERVATIONS:  # the device is another one now
            self._forget()
            for outlier in self._outliers:
                self._add(*outlier)
            self._outliers.clear()
        self._solve()

    def estimate_us(self, rows: int) -> int | None:
        """How long a batch of so many rows will take; None while too little is known."""
        if self._observations < _MIN_OBSERVATIONS:
            return None
        return max(1, math.ceil(self._expected_us(rows)))

    def rows_within(self, budget_us: int) -> int:
        """The most rows that end within the budget, 0 if none does; UNLIMITED_ROWS while too little is known."""
        if self._observations < _MIN_OBSERVATIONS:
            return UNLIMITED_ROWS
        if budget_us < 1:
            return 0
        if self._expected_us(UNLIMITED_ROWS) <= budget_us:
            return UNLIMITED_ROWS
        line = (self._row_us, self._base_us) if self._knows_slope else (self._took / self._rows, 0.0)
        if line[0] <= 0:
            return 0
        rows = max(0, math.floor((budget_us - line[1]) / line[0]) + 1)
        while rows > 0 and math.ceil(self._expected_us(rows)) > budget_us:  # rounding; a step or two
            rows -= 1
        return rows

    def _expected_us(self, rows: int) -> float:
        """The estimate. While batches were all of one size, the most favourable of the lines through it.

        That would be a flat one above that size, and one through zero below it: so nothing is refused, and no batch
        kept small, for what nobody has measured.
        """
        if self._knows_slope:
            return self._row_us * rows + self._base_us
        return self._took / self._weight * min(1.0, rows * self._weight / self._rows)

    def _is_outlier(self, rows: int, took_us: int) -> bool:
        """Whether a batch is far off; if so it is kept aside, with those before it that were off to the same side.

        The first of another size never is: nothing is known of that size yet.
        """
        if not self._knows_slope and abs(rows - self._rows / self._weight) > _MIN_SIZE_SPREAD * rows:
            return False
        expected_us = max(1.0, self._expected_us(rows))
        off = took_us / expected_us - 1
        limit = _OUTLIER_SPREADS * max(self._spread, _MIN_SPREAD)
        self._spread += (1 - _MEMORY) * (min(abs(off), limit) - self._spread)
        if abs(off) <= limit:
            return False
        if (off > 0) != self._are_outliers_slow:
            self._outliers.clear()
        self._are_outliers_slow = off > 0
        self._outliers.append((rows, took_us))
        return True

    def _forget(self) -> None:
        """Let the past not hold the estimate back."""
        self._weight *= _CHANGE_MEMORY
        self._rows *= _CHANGE_MEMORY
        self._took *= _CHANGE_MEMORY
        self._rows_rows *= _CHANGE_MEMORY
        self._rows_took *= _CHANGE_MEMORY

    def _add(self, rows: int, took: float) -> None:
        self._weight = _MEMORY * self._weight + 1
        self._rows = _MEMORY * self._rows + rows
        self._took = _MEMORY * self._took + took
        self._rows_rows = _MEMORY * self._rows_rows + rows * rows
        self._rows_took = _MEMORY * self._rows_took + rows * took

    def _solve(self) -> None:
        mean_rows = self._rows / self._weight
        mean_took = self._took / self._weight
        variance = self._rows_rows / self._weight - mean_rows * mean_rows
        if variance > (_MIN_SIZE_SPREAD * mean_rows) ** 2:
            self._row_us = (self._rows_took / self._weight - mean_rows * mean_took) / variance
            self._knows_slope = True
        elif not self._knows_slope:
            return
        self._base_us = mean_took - self._row_us * mean_rows
        if self._row_us < 0:
            self._row_us, self._base_us = 0.0, mean_took
        elif self._base_us < 0:
            self._row_us, self._base_us = self._rows_took / self._rows_rows, 0.0
