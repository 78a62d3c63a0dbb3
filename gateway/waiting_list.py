"""WaitingList: when to look at each of many who wait. Knows nothing of what they wait for.

An event loop's timer costs 4 us to make and to cancel, for each request that never needs it. Here those who are due
within the same 20 ms share one, and being taken off the list again is a set's discard.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

_PER_S = 50


class Due(Protocol):
    """Who waits. `slot` is the list's own note."""

    slot: int

    def look(self) -> None:
        """The time that was asked for has come, up to 20 ms ago."""
        ...


class WaitingList:
    """Lives on the event loop. Times are the loop's, in seconds."""

    def __init__(self) -> None:
        self._slots: dict[int, set[Due]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, due: Due, at_s: float) -> None:
        """Look at it at this time or up to 20 ms later, once. It is on the list once at most."""
        slot = due.slot = int(at_s * _PER_S) + 1
        fellows = self._slots.get(slot)
        if fellows is None:
            self._slots[slot] = {due}
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(1 / _PER_S, self._tick)
        else:
            fellows.add(due)

    def discard(self, due: Due) -> None:
        """Take it off the list, if it is on it."""
        fellows = self._slots.get(due.slot)
        if fellows is not None:
            fellows.discard(due)
            if not fellows:
                del self._slots[due.slot]

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = int(loop.time() * _PER_S)
        self._timer = None
        for slot in sorted(slot for slot in self._slots if slot <= now):
            for due in self._slots.pop(slot):
                due.look()
        if self._slots and self._timer is None:
            self._timer = loop.call_later(1 / _PER_S, self._tick)
