"""Digest: what an object's bytes must add up to, as its publisher or its store tells. Knows neither of the two."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import Literal, Protocol


class Hasher(Protocol):
    """Takes bytes in order and tells what they add up to so far."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """Take more bytes."""

    def digest(self) -> bytes:
        """Of all bytes so far."""


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Digest:
    """An algorithm and its value over a whole object."""

    algorithm: Literal["sha256", "crc32"]
    value: bytes

    def hasher(self) -> Hasher:
        """A new hasher of this algorithm."""
        return hashlib.sha256() if self.algorithm == "sha256" else _Crc32()

    def told(self, value: bytes) -> str:
        """How bytes that add up to `value` differ; '' when they do not."""
        return "" if value == self.value else f"its {self.algorithm} is {value.hex()}, not {self.value.hex()}"
