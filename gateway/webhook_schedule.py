"""Schedule: when a webhook is tried again; and the waits that a topic can hold. Pure: time and chance are passed in.

A topic gives records back in the order in which they came. So those that wait are sorted by how long: each partition of
the retry topic holds one span, all its records wait equally long there, and the first is always the next to be ready. A
longer wait is made of several spans: what is ready, but not due yet, moves on to a partition of a shorter one. Any
number of records wait so, and a process needs to know the first of each partition only.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

PARTITIONS = 18  # the last one's span: 65,536 s, about 18 hours
_JITTER = 0.2
_MAX_DELAYS = 100
_MAX_DELAY_S = 7 * 24 * 3600.0


class Schedule(msgspec.Struct, frozen=True):
    """The waits after the first failed attempt, the second, and so on."""

    delays_s: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Seconds separated by spaces or commas. Raises ValueError."""
        delays_s = tuple(float(part) for part in text.replace(",", " ").split())
        if len(delays_s) > _MAX_DELAYS or not all(0 <= delay_s <= _MAX_DELAY_S for delay_s in delays_s):
            raise ValueError(f"it is not up to {_MAX_DELAYS} waits of 0 to {_MAX_DELAY_S:g} seconds each")
        return cls(delays_s)

    @property
    def total_ms(self) -> int:
        """All waits together."""
        return int(1000 * sum(self.delays_s))

    def is_last(self, failures: int) -> bool:
        """Whether the attempt after so many failures is the last one."""
        return failures >= len(self.delays_s)

    def due_ms(
        self, failures: int, *, since_ms: int, now_ms: int, chance: float, retry_after_s: float | None = None
    ) -> int | None:
        """When to try again after this many failures; None: not at all.

        `chance`, from 0 to 1, says how much of a fifth is taken off the wait, so that what failed together does not
        come back together. `since_ms` is the first attempt's time: what a receiver asks for by Retry-After is honoured
        up to the end that the schedule would have come to.
        """
        if failures > len(self.delays_s):
            return None
        due_ms = now_ms + int(1000 * self.delays_s[failures - 1] * (1 - _JITTER * chance))
        if retry_after_s is None:
            return due_ms
        return max(due_ms, min(now_ms + int(1000 * retry_after_s), since_ms + self.total_ms))


def retry_after_s(text: str | None, *, now_s: float) -> float | None:
    """The seconds that a Retry-After header asks for, in either of its forms; None for anything else."""
    if not text:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now_s)


def partition_of(wait_ms: int) -> int:
    """The partition for a wait: the longest span that it contains; 0 for waits of less than a second."""
    return min(max(0, wait_ms // 1000).bit_length(), PARTITIONS - 1)


def ready_ms(partition: int, *, now_ms: int, due_ms: int) -> int:
    """When a record that is put into this partition now is to be looked at again, never after it is due."""
    return due_ms if partition == 0 else min(due_ms, now_ms + 1000 * 2 ** (partition - 1))
