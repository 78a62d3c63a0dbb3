"""LoadMeter: how much memory each load took, though only a whole device's or process's use can be seen. Pure.

Growth between two readings is shared among the loads that were under way, in proportion to what each still expected;
so loads that overlap are told apart as well as can be, and one that runs alone exactly. Must not know how memory is
read.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Load:
    expected_bytes: int
    grown_bytes: float = 0.0


class LoadMeter(Generic[K]):
    """The loads under way on one device."""

    def __init__(self) -> None:
        self._loads: dict[K, _Load] = {}
        self._read_bytes = 0

    def begin(self, key: K, *, expected_bytes: int, used_bytes: int) -> None:
        """A load begins; `used_bytes` is what the device has in use now."""
        self._share(used_bytes)
        self._loads[key] = _Load(max(1, expected_bytes))

    def end(self, key: K, *, used_bytes: int) -> int:
        """A load has ended: the bytes it took, never below 0."""
        self._share(used_bytes)
        return max(0, round(self._loads.pop(key).grown_bytes))

    def _share(self, used_bytes: int) -> None:
        grown_bytes = used_bytes - self._read_bytes
        self._read_bytes = used_bytes
        if not self._loads:
            return
        weights = {key: max(1.0, load.expected_bytes - load.grown_bytes) for key, load in self._loads.items()}
        total = sum(weights.values())
        for key, load in self._loads.items():
            load.grown_bytes += grown_bytes * weights[key] / total
