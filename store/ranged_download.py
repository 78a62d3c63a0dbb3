"""A large object's way to disk: its ranges fetched by several threads at once, each written to its place in one file.

Must not know S3, nor keys: how a range is asked for is the caller's. What is in memory is bounded for all downloads of
the process together: one chunk for each connection.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Protocol

from store.digest import Digest
from store.object_store import DigestMismatch, StoreUnavailable
from store.published_file import sync_data

PART_BYTES = 16 * 1024 * 1024
THREADS = 8
# Of all downloads of the process together. Above what one needs, so that a second one does not wait for the first.
MAX_CONNECTIONS = 24
# A part goes on from where its connection broke, so often; then it is the caller's turn.
MAX_RESUMES = 8
_CHUNK_BYTES = 256 * 1024  # more is slower: the HTTP library allocates it anew for each read
# Data on its way to the disk while more comes: the last sync would take long otherwise.
_SYNC_BYTES = 64 * 1024 * 1024

_connections = threading.BoundedSemaphore(MAX_CONNECTIONS)


class Body(Protocol):
    """The answer that holds a range."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read up to so many bytes; 0 at the end. Raises StoreUnavailable when the connection breaks."""

    def close(self) -> None:
        """End it, read or not."""


# Asks for the bytes from a start up to an end. Raises StoreError; not asked again then.
OpenRange = Callable[[int, int], Body]


def download_ranges(
    file: int,
    size_bytes: int,
    open_range: OpenRange,
    *,
    digest: Digest | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Write the bytes of an object to an empty file that is open to read and write.

    `on_progress` is called in this thread. Raises what `open_range` and `on_progress` raise, DigestMismatch, and
    OSError; when it raises, no thread writes to the file any more.
    """
    if size_bytes:
        os.posix_fallocate(file, 0, size_bytes)
    download = _Download(file, size_bytes, open_range)
    sum_up = _SumUp(file, digest)
    done_bytes = synced_bytes = 0
    with contextlib.closing(download):
        for start, end in download.written():
            done_bytes += end - start
            if on_progress:
                on_progress(done_bytes)
            sum_up.note(start, end)
            if done_bytes - synced_bytes >= _SYNC_BYTES:
                sync_data(file)
                synced_bytes = done_bytes
    sum_up.check()


class _Download:
    """Threads that take one part after the other."""

    def __init__(self, file: int, size_bytes: int, open_range: OpenRange) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._open_range = open_range
        self._starts = deque(range(0, size_bytes, PART_BYTES))
        self._news: SimpleQueue[tuple[int, int] | BaseException] = SimpleQueue()
        self._is_ended = False
        self._threads = [
            threading.Thread(target=self._work, name="download", daemon=True)
            for _ in range(min(THREADS, len(self._starts)))
        ]

    def written(self) -> Iterator[tuple[int, int]]:
        """Start and end of each run of bytes, once it is written, until all are. Raises what a thread met."""
        for thread in self._threads:
            thread.start()
        left_bytes = self._size_bytes
        while left_bytes:
            news = self._news.get()
            if isinstance(news, BaseException):
                raise news
            yield news
            left_bytes -= news[1] - news[0]

    def close(self) -> None:
        """End the threads: with the chunk that each is at."""
        self._is_ended = True
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self) -> None:
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, self._size_bytes)))
        try:
            while not self._is_ended and self._starts:
                with _connections, contextlib.suppress(IndexError):  # taken by another thread since
                    start = self._starts.popleft()
                    self._fetch(start, min(start + PART_BYTES, self._size_bytes), buffer)
        except BaseException as error:  # raised again where the download was asked for
            self._news.put(error)

    def _fetch(self, start: int, end: int, buffer: memoryview) -> None:
        """Write one part, however often its connection breaks, within reason."""
        for _ in range(MAX_RESUMES + 1):
            broken = None
            with contextlib.closing(self._open_range(start, end)) as body:
                while start < end and not self._is_ended:
                    try:
                        count = body.readinto(buffer[: end - start])
                    except StoreUnavailable as error:
                        broken = error
                        break
                    if not count:
                        break
                    _write_at(self._file, buffer[:count], start)
                    self._news.put((start, start + count))
                    start += count
            if start == end or self._is_ended:
                return
        raise StoreUnavailable(f"the answer kept ending early, {end - start} bytes before its end") from broken


class _SumUp:
    """Takes the bytes that are written, in whatever order, to a hasher in theirs: from the file, still in memory."""

    def __init__(self, file: int, digest: Digest | None) -> None:
        self._file = file
        self._digest = digest
        self._hasher = digest.hasher() if digest else None
        self._ends: dict[int, int] = {}  # of what is written and not summed up, by its start
        self._done = 0
        self._buffer = memoryview(bytearray(_CHUNK_BYTES if digest else 0))

    def note(self, start: int, end: int) -> None:
        """These bytes are written."""
        if self._hasher is None:
            return
        self._ends[start] = end
        while (end := self._ends.pop(self._done, 0)) > 0:
            while self._done < end:
                count = os.preadv(self._file, [self._buffer[: end - self._done]], self._done)
                self._hasher.update(self._buffer[:count])
                self._done += count

    def check(self) -> None:
        """All bytes are written. Raises DigestMismatch."""
        if self._hasher is not None and self._digest is not None:
            differs = self._digest.told(self._hasher.digest())
            if differs:
                raise DigestMismatch(differs)


def _write_at(file: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count
