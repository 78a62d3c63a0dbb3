"""Bisection: runs a batch, and smaller and smaller parts of what fails, until each request has ended by itself.

A batch that fails is halved until the failing requests stand alone. One that is out of memory is halved too, but its
requests are innocent: the size that failed is not tried again for what is left of the batch. A transient failure says
nothing of the requests: it is told of all of them as it came, for the caller to try them again. Pure: knows no thread,
no clock and no backend, only how many rows each request has and whom to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.errors import ErrorCode, InferenceError, shown
from workers.backend import OutOfMemory, TransientError
from workers.batch import Outputs


@dataclass(slots=True, eq=False)
class Part:
    """Some of a batch's requests, [first, first + count), that ended the same way: with outputs, or with an error.

    An error is that of one request, or transient: then it may be of several, and each of them may be run again.
    """

    first: int
    count: int
    outputs: Outputs | None
    error: InferenceError | None

    @property
    def is_transient(self) -> bool:
        """True when the requests may well pass a little later (see workers/retry.py)."""
        return isinstance(self.error, TransientError)


class Bisection:
    """One batch. `run(first, count)` runs these requests together and raises what the model raises."""

    def __init__(self, model: str, rows: Sequence[int], run: Callable[[int, int], Outputs]) -> None:
        """`rows` are per request."""
        self._model = model
        self._rows = rows
        self._run = run
        self._limit_rows = sum(rows)
        self.runs = 0
        self.out_of_memory_rows: list[int] = []  # the sizes that were too large, in the order of being tried

    def parts(self) -> list[Part]:
        """Run everything, at most 2n - 1 times; the parts are in order and hold every request once. Never raises."""
        return self._parts(0, len(self._rows))

    def _parts(self, first: int, count: int, *, faulty: bool = False) -> list[Part]:
        """`faulty`: one of these fails its batch, that is known without running them all together."""
        rows = sum(self._rows[first : first + count])
        too_large = rows > self._limit_rows
        if count == 1 or not (faulty or too_large):
            part = self._attempt(first, count, rows)
            if count == 1 or part.outputs is not None or part.is_transient:
                return [part]
            too_large = isinstance(part.error, OutOfMemory)
            faulty = not too_large
        half = self._half_of_rows(first, count, rows) if too_large else count // 2
        left = self._parts(first, half)
        # All of the left half passed, so the fault is in the right one. It still does not fail a request that was not
        # run alone: perhaps the fault has gone, or needs the two halves together.
        faulty = faulty and all(part.outputs is not None for part in left)
        return left + self._parts(first + half, count - half, faulty=faulty)

    def _attempt(self, first: int, count: int, rows: int) -> Part:
        self.runs += 1
        try:
            return Part(first, count, self._run(first, count), None)
        except OutOfMemory as error:
            self.out_of_memory_rows.append(rows)
            self._limit_rows = min(self._limit_rows, max(1, rows // 2))
            return Part(first, count, None, error)
        except InferenceError as error:
            return Part(first, count, None, error)
        except BaseException as cause:  # SystemExit too: whatever a model raises must not reach its neighbours
            failed = InferenceError(ErrorCode.MODEL_FAILED, f"model {self._model!r} failed: {shown(cause)}")
            failed.__cause__ = cause
            return Part(first, count, None, failed)

    def _half_of_rows(self, first: int, count: int, rows: int) -> int:
        """How many requests, at least one and not all, hold the half of the rows as nearly as can be."""
        best, best_off, held = 1, rows, 0
        for number in range(1, count):
            held += self._rows[first + number - 1]
            off = abs(2 * held - rows)
            if off < best_off:
                best, best_off = number, off
        return best
