"""WaitingList: everyone is looked at once, never early, those that were taken off not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.waiting_list import WaitingList


class Guest:
    """Somebody on the list; notes when it was looked at."""

    def __init__(self, then: Callable[[Guest], None] = lambda guest: None) -> None:
        self.slot = 0
        self.looks: list[float] = []
        self.looked = asyncio.Event()
        self._then = then

    def look(self) -> None:
        self.looks.append(asyncio.get_running_loop().time())
        self.looked.set()
        self._then(self)


async def test_each_is_looked_at_once_and_not_before_its_time() -> None:
    waiting, now_s = WaitingList(), asyncio.get_running_loop().time()
    due = {Guest(): now_s + delay_s for delay_s in (0.0, 0.001, 0.03, 0.03, 0.07)}
    for guest, at_s in due.items():
        waiting.add(guest, at_s)
    await asyncio.gather(*(guest.looked.wait() for guest in due))
    for guest, at_s in due.items():
        (looked_s,) = guest.looks
        assert looked_s >= at_s


async def test_who_was_taken_off_is_not_looked_at() -> None:
    waiting, now_s = WaitingList(), asyncio.get_running_loop().time()
    left, stays, never = Guest(), Guest(), Guest()
    waiting.discard(never)
    for guest in (left, stays):
        waiting.add(guest, now_s + 0.02)
    waiting.discard(left)
    waiting.discard(left)
    await stays.looked.wait()
    assert (left.looks, never.looks) == ([], [])
    assert waiting._slots == {}
    assert waiting._timer is None  # an idle gateway has no timer


@pytest.mark.parametrize("times", [2, 5])
async def test_who_is_looked_at_may_ask_for_another_look(times: int) -> None:
    waiting = WaitingList()

    def again(guest: Guest) -> None:
        if len(guest.looks) < times:
            guest.looked.clear()
            waiting.add(guest, asyncio.get_running_loop().time())

    guest = Guest(again)
    waiting.add(guest, asyncio.get_running_loop().time())
    while len(guest.looks) < times:
        await guest.looked.wait()
        await asyncio.sleep(0)
    assert len(guest.looks) == times
