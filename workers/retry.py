"""Retry and Backoff: whether what failed is tried again, and when.

Retry is of a request that met a transient failure, Backoff of a model version that failed to load. Pure: clock and
jitter are passed in; jitter is a number from 0 up to 1, drawn by the caller, so that many do not come back at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.deadline import Deadline


@dataclass(frozen=True, slots=True)
class Retry:
    """Up to `attempts` runs in all; between two of them at least half of `first_ms`, doubled each time up to `last_ms`.

    `attempts` 1: nothing is tried again.
    """

    attempts: int = 5
    first_ms: int = 100
    last_ms: int = 5000

    def delay_ms(self, failed: int, jitter: float) -> int | None:
        """How long to wait after the `failed`th failure, counted from 1; None: no more, this was the last one."""
        if failed >= self.attempts:
            return None
        return self.pause_ms(failed, jitter)

    def delay_within_ms(self, failed: int, jitter: float, *, deadline: Deadline | None, now_ms: int) -> int | None:
        """As `delay_ms`, but None also when the request's deadline will have passed by then: it is answered now."""
        delay_ms = self.delay_ms(failed, jitter)
        if delay_ms is None or (deadline is not None and deadline.passed(now_ms + delay_ms)):
            return None
        return delay_ms

    def pause_ms(self, failed: int, jitter: float) -> int:
        """The pause alone, without a limit of attempts."""
        # 2^40 times anything is beyond every last_ms; so large failure counts cost nothing.
        whole_ms = min(self.last_ms, self.first_ms << min(max(0, failed - 1), 40))
        return whole_ms // 2 + int(jitter * (whole_ms - whole_ms // 2))


class Backoff:
    """One model version's failures to load. Times are microseconds of the caller's clock.

    While `is_spent`, whoever waits without a deadline is failed; with one, waits for it and for the next try. Every
    failure goes on being tried again, less and less often: the model may be corrected.
    """

    def __init__(self, retry: Retry) -> None:
        """`retry.attempts`: failures after which nobody waits for ever."""
        self._retry = retry
        self.failures = 0
        self.next_try_us = 0  # not before

    @property
    def is_spent(self) -> bool:
        """True from the failure on that makes those without a deadline fail, until a success."""
        return self.failures >= self._retry.attempts

    def is_due(self, now_us: int) -> bool:
        """Whether it may be tried now."""
        return now_us >= self.next_try_us

    def note_failure(self, now_us: int, jitter: float) -> None:
        """A try has failed."""
        self.failures += 1
        self.next_try_us = now_us + 1000 * self._retry.pause_ms(self.failures, jitter)

    def note_success(self) -> None:
        """It is there: the next failure begins anew."""
        self.failures = 0
        self.next_try_us = 0
