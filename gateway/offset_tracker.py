"""OffsetTracker: how far a partition is done, while its records end in any order. Pure."""

from __future__ import annotations


class OffsetTracker:
    """Offsets that were taken and have not ended."""

    def __init__(self, first: int) -> None:
        """`first`: the offset of the first record that was read."""
        self._open: set[int] = set()
        self._next = first

    def begin(self, offset: int) -> None:
        """A record is taken. They come in order."""
        self._open.add(offset)
        self._next = offset + 1

    def end(self, offset: int) -> None:
        """What became of it is durable."""
        self._open.discard(offset)

    @property
    def position(self) -> int:
        """The offset to commit: everything before it has ended."""
        return min(self._open, default=self._next)
