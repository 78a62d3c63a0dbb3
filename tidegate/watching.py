"""Watching: which of many jobs have ended, asked in rounds. Without I/O, as tidegate/operations.py."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from tidegate.errors import TidegateError, WaitTimeoutError
from tidegate.exchange import Operation, Pause
from tidegate.operations import Operations
from tidegate.status import JobStatus

_AT_A_TIME = 100
_FIRST_PACE_S = 0.05
_LAST_PACE_S = 1.0
_TURN_S = 20.0  # how long one job alone is waited for at a time


class Watch:
    """The jobs that have not ended, as far as is known. One gateway call tells of a hundred of them."""

    def __init__(self, operations: Operations, job_ids: Iterable[str], timeout_s: float | None) -> None:
        self._operations = operations
        self._pending = deque(dict.fromkeys(job_ids))
        self._until_s = operations.until_s(timeout_s)
        self._pace_s = _FIRST_PACE_S
        self._unasked = len(self._pending)

    @property
    def pending(self) -> frozenset[str]:
        """The ids of the jobs that have not ended."""
        return frozenset(self._pending)

    def next_ended(self) -> Operation[list[str]]:
        """Wait until some have ended: their ids. [] once the time is over, or when none is left.

        A job of which the gateway knows nothing any more counts as ended: to wait for it would be for ever.
        """
        while self._pending:
            left_s = self._operations.left_s(self._until_s)
            if self._unasked <= 0 and len(self._pending) > 1:  # all have been asked about: from the beginning
                yield Pause(min(self._pace_s, left_s))
                self._pace_s = min(2 * self._pace_s, _LAST_PACE_S)
                self._unasked = len(self._pending)
            ended = yield from self._ask()
            if ended:
                self._pace_s = _FIRST_PACE_S
                return ended
            if left_s <= 0:
                return []
        return []

    def _ask(self) -> Operation[list[str]]:
        if len(self._pending) == 1:
            return (yield from self._wait_for_last())
        asked = [self._pending.popleft() for _ in range(min(_AT_A_TIME, self._unasked))]
        self._unasked -= len(asked)
        # Who asks about all can wait for the first of them; else others may have ended meanwhile.
        wait_s = 0 if self._pending else math.floor(min(_TURN_S, self._operations.left_s(self._until_s)))
        try:
            told = yield from self._operations.statuses(asked, wait_s)
        except BaseException:
            self._pending.extendleft(reversed(asked))
            raise
        ended = [job_id for job_id in asked if _has_ended(told[job_id])]
        self._pending.extend(job_id for job_id in asked if not _has_ended(told[job_id]))
        return ended

    def _wait_for_last(self) -> Operation[list[str]]:
        job_id = self._pending[0]
        try:
            yield from self._operations.wait(job_id, min(_TURN_S, self._operations.left_s(self._until_s)))
        except WaitTimeoutError:
            return []
        except TidegateError as error:
            if error.retryable or not error.status:
                raise
        self._pending.popleft()
        return [job_id]


def _has_ended(told: JobStatus | TidegateError) -> bool:
    return told.ended if isinstance(told, JobStatus) else not told.retryable


def accepted(submitted: Sequence[JobStatus | TidegateError]) -> list[JobStatus]:
    """The jobs of a batch. Raises ExceptionGroup when some were refused; its note names those that run."""
    refused = [each for each in submitted if isinstance(each, TidegateError)]
    taken = [each for each in submitted if isinstance(each, JobStatus)]
    if refused:
        group = ExceptionGroup(f"{len(refused)} of {len(submitted)} requests were refused", refused)
        group.add_note(f"jobs that run: {', '.join(status.id for status in taken) or 'none'}")
        raise group
    return taken
