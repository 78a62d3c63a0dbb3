"""TokenBucket: how many requests per second somebody may send, with bursts. Pure: the clock is passed in."""

from __future__ import annotations


class TokenBucket:
    """Fills with `rate` tokens per second up to `burst`; a request takes one. Starts full. Times in seconds."""

    __slots__ = ("_at_s", "_burst", "_rate", "_tokens")

    def __init__(self, *, rate: float, burst: float, now_s: float) -> None:
        """`burst` below 1 is taken as 1: otherwise nobody could ever send anything."""
        self._rate = rate
        self._burst = max(1.0, burst)
        self._tokens = self._burst
        self._at_s = now_s

    def take(self, now_s: float, count: int = 1) -> float:
        """Take tokens: 0 when there was one, else the seconds until there is one, and none is taken.

        A `count` above what there is leaves a debt, which fills first: requests that come together are taken together,
        and in the long run there are no more of them than the rate allows.
        """
        self._fill(now_s)
        if self._tokens >= 1.0:
            self._tokens -= count
            return 0.0
        return (1.0 - self._tokens) / self._rate

    def is_full(self, now_s: float) -> bool:
        """Whether it says as little as a new one."""
        self._fill(now_s)
        return self._tokens >= self._burst

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:  # a clock that goes back fills nothing
            self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
