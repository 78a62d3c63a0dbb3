"""Entry: one request in a Batcher's queue. Knows neither the queue nor what the request holds."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

DELAYED_RANK = 1 << 65  # behind every level: those are 64 bits wide


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """One request in the queue.

    `arrived_us` is its arrival at the broker in this process's clock. `deadline_us`: when its answer is of no use any
    more; `start_by_us`: from when it must not begin, however short it is. `priority` is the level that it asks for, 0
    none; `timeout_us` how long it may wait at most, 0 nothing said: it counts where the queue policy of its level lets
    it. The rest is the Batcher's: `level` is the one it got, or
    DELAYED_RANK once it is to be served after all others; `gone` is set once it has left the queue, by whatever way.
    """

    payload: T
    rows: int
    signature: Hashable
    arrived_us: int
    deadline_us: int | None = None
    priority: int = 0
    timeout_us: int = 0
    start_by_us: int | None = None
    level: int = 1
    gone: bool = False

    @property
    def begin_by_us(self) -> int | None:
        """From when it must not begin, for whichever reason; None: no such moment."""
        if self.start_by_us is None or self.deadline_us is None:
            return self.deadline_us if self.start_by_us is None else self.start_by_us
        return min(self.start_by_us, self.deadline_us)

    @property
    def is_delayed(self) -> bool:
        """Whether it is to be served after all that are not."""
        return self.level == DELAYED_RANK

    def rank(self, aged_us: int) -> int:
        """What counts before what, lower first: its level, the highest if it arrived by `aged_us`."""
        if self.level == DELAYED_RANK:
            return DELAYED_RANK
        return 1 if self.arrived_us <= aged_us else self.level
