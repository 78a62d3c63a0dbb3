"""MemoryLedger: which models hold how much of each device's memory, and who makes room for whom. Pure.

A model's bytes are reserved before it allocates any, and replaced by what was measured once it is loaded. Room is made
by the models that nobody uses: a segmented LRU, so that many models that are asked for once do not push out the few
that are asked for again and again. A model that is used a second time is protected, up to a part of the budget; those
that are not protected go first, and within each segment the least recently used. Must not know models, threads or how
memory is measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

Bytes = Mapping[str, int]  # by device: "cpu", "gpu0"


_PROTECTED_RATIO = 0.8  # of a device's budget


@dataclass(slots=True)
class _Holding:
    bytes: dict[str, int]
    pins: int
    used_at: int
    is_protected: bool = False

    @property
    def rank(self) -> tuple[bool, int]:
        """Who goes first: the lowest."""
        return self.is_protected, self.used_at


class MemoryLedger(Generic[K]):
    """Holdings by key, within a budget for each device; a device without a budget has no limit."""

    def __init__(self, budgets: Bytes) -> None:
        self._budgets = dict(budgets)
        self._held: dict[str, int] = dict.fromkeys(budgets, 0)
        self._holdings: dict[K, _Holding] = {}
        self._uses = 0

    @property
    def held(self) -> Bytes:
        """Bytes that are reserved or in use, by device."""
        return self._held

    def excess(self, needs: Bytes) -> tuple[str, int] | None:
        """A device and its budget that `needs` could not fit into even if nothing else were there."""
        for device, need in needs.items():
            budget = self._budgets.get(device)
            if budget is not None and need > budget:
                return device, budget
        return None

    def victims(self, needs: Bytes) -> list[K] | None:
        """Who must go so that `needs` fit, in the order in which they should; [] when they fit. None: not now."""
        lacking = self._lacking(needs)
        if not lacking:
            return []
        victims: list[K] = []
        for key, holding in sorted(self._holdings.items(), key=lambda item: item[1].rank):
            if holding.pins or not any(holding.bytes.get(device) for device in lacking):
                continue
            victims.append(key)
            lacking = {
                device: left for device, lack in lacking.items() if (left := lack - holding.bytes.get(device, 0)) > 0
            }
            if not lacking:
                return victims
        return None

    def reserve(self, key: K, needs: Bytes) -> None:
        """Hold `needs` for a model that is about to load; it is pinned once. Raises ValueError if it has a holding."""
        if key in self._holdings:
            raise ValueError(f"{key} holds memory already")
        self._holdings[key] = _Holding({}, 1, self._next_use())
        self._set(key, needs)

    def settle(self, key: K, used: Bytes) -> None:
        """Replace what was reserved by what was measured."""
        self._set(key, used)

    def pin(self, key: K) -> None:
        """The model is in use, and must stay."""
        holding = self._holdings[key]
        holding.pins += 1
        if holding.pins == 1 and not holding.is_protected:  # it was used before, and is again
            holding.is_protected = True
            self._bound_protected()

    def unpin(self, key: K) -> None:
        """One use has ended; after the last one the model may go, when it is its turn."""
        holding = self._holdings[key]
        holding.pins -= 1
        holding.used_at = self._next_use()

    def is_pinned(self, key: K) -> bool:
        """Whether the model is in use."""
        holding = self._holdings.get(key)
        return holding is not None and holding.pins > 0

    def release(self, key: K) -> None:
        """The model is gone, or never came. Idempotent."""
        if key in self._holdings:
            self._set(key, {})
            del self._holdings[key]

    def _bound_protected(self) -> None:
        """Let the protected that were used least recently be like any other, until the rest keep within their part."""
        protected = sorted((each for each in self._holdings.values() if each.is_protected), key=lambda each: each.rank)
        for device, budget in self._budgets.items():
            held = sum(each.bytes.get(device, 0) for each in protected)
            for holding in protected:
                if held <= _PROTECTED_RATIO * budget:
                    break
                if holding.is_protected and not holding.pins:
                    holding.is_protected = False
                    holding.used_at = self._next_use()
                    held -= holding.bytes.get(device, 0)

    def _lacking(self, needs: Bytes) -> dict[str, int]:
        return {
            device: lack
            for device, need in needs.items()
            if device in self._budgets and (lack := self._held[device] + need - self._budgets[device]) > 0
        }

    def _set(self, key: K, bytes_: Bytes) -> None:
        holding = self._holdings[key]
        for device, count in holding.bytes.items():
            self._held[device] -= count
        holding.bytes = {device: count for device, count in bytes_.items() if count > 0}
        for device, count in holding.bytes.items():
            self._held[device] = self._held.get(device, 0) + count

    def _next_use(self) -> int:
        self._uses += 1
        return self._uses
