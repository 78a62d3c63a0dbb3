"""Progress of a pool on one partition: a committed offset, and in its metadata what is known beyond it.

Work ends in any order, a committed offset cannot say so. The commit's metadata therefore carries the completed
offsets above it, as runs or as a bitmap, whichever is shorter, and how far work has begun. A new owner skips what is
done; the gateway tells queued from running and counts the backlog exactly. Knows no Kafka client.

Format, base64 without padding of: version byte 1; varint of `started - committed`; a tag byte; the body. Tag 1 (runs):
varints, alternating the gap before a run and the run's length. Tag 2 (bitmap): bit i of byte i // 8 is
`committed + i`. A reader ignores a version or tag that it does not know: it then only repeats work.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

MAX_METADATA_CHARS = 4096  # the broker's default of offset.metadata.max.bytes

_VERSION = 1
_RUNS = 1
_BITMAP = 2
_MAX_RAW_BYTES = MAX_METADATA_CHARS * 3 // 4
_MAX_SPAN = 1 << 24  # offsets that a decoded map may span: bounds what a hostile metadata string can make us do


class Progress(msgspec.Struct, frozen=True):
    """What a pool has done of a partition.

    `committed`: every offset below it is done. `started`: work has begun on every offset below it (>= committed).
    `done`: half-open runs [first, end) of completed offsets above `committed`, ascending, disjoint, not touching.
    """

    committed: int
    started: int
    done: tuple[tuple[int, int], ...] = ()

    def is_done(self, offset: int) -> bool:
        """True when the outcome of `offset` is durable."""
        if offset < self.committed:
            return True
        at = bisect_right(self.done, (offset, _MAX_OFFSET)) - 1
        return at >= 0 and self.done[at][0] <= offset < self.done[at][1]

    def done_count(self) -> int:
        """How many offsets above `committed` are done."""
        return sum(end - first for first, end in self.done)

    def backlog(self, end_offset: int) -> int:
        """Unread and unacknowledged records below `end_offset`, the partition's next offset."""
        return max(0, end_offset - self.committed - self.done_count())

    def encode(self) -> str:
        """The commit metadata, at most MAX_METADATA_CHARS long: a map without room is left out, never cut."""
        head = bytearray([_VERSION])
        _put_varint(head, max(0, self.started - self.committed))
        body = self._runs()
        bitmap_bytes = (self.done[-1][1] - self.committed + 7) // 8 if self.done else 0
        if bitmap_bytes < len(body) - 1:
            body = self._bitmap(bitmap_bytes)
        raw = head + body if len(head) + len(body) <= _MAX_RAW_BYTES else head
        return base64.b64encode(raw).decode().rstrip("=")

    def _runs(self) -> bytes:
        body = bytearray([_RUNS])
        at = self.committed
        for first, end in self.done:
            _put_varint(body, first - at)
            _put_varint(body, end - first)
            at = end
        return bytes(body)

    def _bitmap(self, size_bytes: int) -> bytes:
        bits = 0
        for first, end in self.done:
            bits |= ((1 << (end - first)) - 1) << (first - self.committed)
        return bytes([_BITMAP]) + bits.to_bytes(size_bytes, "little")


_MAX_OFFSET = 1 << 63


def decode_progress(committed: int, metadata: str | None) -> Progress:
    """Read a commit back. Anything unreadable means that nothing is known beyond `committed`; never raises."""
    nothing = Progress(committed, committed)
    if not metadata or len(metadata) > MAX_METADATA_CHARS:
        return nothing
    try:
        raw = base64.b64decode(metadata + "=" * (-len(metadata) % 4), validate=True)
    except (binascii.Error, ValueError):
        return nothing
    if not raw or raw[0] != _VERSION:
        return nothing
    try:
        ahead, at = _get_varint(raw, 1)
        body = raw[at:]
        runs = tuple(_read_runs(body, committed)) if body else ()
    except (IndexError, ValueError):
        return nothing
    return Progress(committed, committed + ahead, runs)


def inherited_progress(committed: int, metadata: str | None, *, first: int, end: int) -> Progress:
    """Where a new owner of a partition with offsets [first, end) begins, from what is committed (-1: nothing).

    At the first record when there is no commit, or it is of an earlier life of the topic, or overtaken by retention.
    """
    return decode_progress(committed, metadata) if first <= committed <= end else Progress(first, first)


def _read_runs(body: bytes, committed: int) -> Iterator[tuple[int, int]]:
    if body[0] == _RUNS:
        at, offset, last = 1, committed, -1
        while at < len(body):
            gap, at = _get_varint(body, at)
            length, at = _get_varint(body, at)
            first = offset + gap
            offset = first + length
            if not length or first == last or offset - committed > _MAX_SPAN:
                raise ValueError("not a map that this version writes")
            last = offset
            yield first, offset
    elif body[0] == _BITMAP:
        first = None
        size_bits = (len(body) - 1) * 8
        for index in range(size_bits + 1):
            is_set = index < size_bits and body[1 + index // 8] >> index % 8 & 1
            if is_set and first is None:
                first = committed + index
            elif not is_set and first is not None:
                yield first, committed + index
                first = None


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _get_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 64 bits")
