"""A download in ranges, over bytes in memory: order, resuming, digests, and what it leaves running."""

import os
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import DigestMismatch, StoreError, StoreUnavailable
from store import ranged_download as ranges
from store.digest import Digest
from store.ranged_download import MAX_RESUMES, THREADS, download_ranges

PART = 1000


class Source:
    """An object whose answers break off after so many bytes, in order."""

    def __init__(self, data: bytes, breaks: list[int] | None = None) -> None:
        self.data = data
        self.breaks = breaks or []
        self.asked: list[tuple[int, int]] = []
        self.sent_bytes = 0
        self.open = self.most_open = 0
        self._lock = threading.Lock()

    def __call__(self, start: int, end: int) -> "Answer":
        self.asked.append((start, end))
        with self._lock:
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        kept = self.breaks.pop(0) if self.breaks else end - start
        return Answer(self, self.data[start : min(start + kept, end)])

    def closed(self) -> None:
        with self._lock:
            self.open -= 1


class Answer:
    def __init__(self, source: Source, data: bytes) -> None:
        self._source = source
        self._data = memoryview(data)

    def readinto(self, buffer: memoryview, /) -> int:
        time.sleep(0)  # let the others go on
        count = min(len(buffer), len(self._data), 300)
        buffer[:count] = self._data[:count]
        self._data = self._data[count:]
        self._source.sent_bytes += count
        return count

    def close(self) -> None:
        self._source.closed()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "PART_BYTES", PART)
    monkeypatch.setattr(ranges, "_SYNC_BYTES", 3 * PART)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    with open(tmp_path / "file", "w+b") as opened:
        yield opened.fileno()


def content(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(0, 12 * PART), breaks=st.lists(st.integers(1, PART), max_size=8))
def test_every_byte_is_at_its_place_and_is_asked_for_once(size: int, breaks: list[int]) -> None:
    ranges.PART_BYTES = PART  # the fixture is for functions, not for examples
    source, told = Source(os.urandom(size), breaks), list[int]()
    with tempfile.TemporaryFile() as opened:
        digest = Digest("sha256", sha256(source.data).digest())
        download_ranges(opened.fileno(), size, source, digest=digest, on_progress=told.append)
        assert content(opened.fileno()) == source.data
    assert source.sent_bytes == size
    assert source.open == 0
    assert told == sorted(set(told))
    assert told[-1:] == [size][: len(told)]


@pytest.mark.parametrize("digest", [Digest("sha256", bytes(32)), Digest("crc32", bytes(4))])
def test_other_bytes_than_told_are_a_mismatch(file: int, digest: Digest) -> None:
    with pytest.raises(DigestMismatch, match=digest.algorithm):
        download_ranges(file, 5 * PART, Source(os.urandom(5 * PART)), digest=digest)


def test_a_checksum_of_the_store_passes(file: int) -> None:
    data = os.urandom(5 * PART)
    download_ranges(file, len(data), Source(data), digest=Digest("crc32", zlib.crc32(data).to_bytes(4, "big")))


def test_a_part_that_keeps_breaking_ends_the_download(file: int) -> None:
    source = Source(bytes(PART), breaks=[1] * (MAX_RESUMES + 1))
    with pytest.raises(StoreUnavailable, match="kept ending early"):
        download_ranges(file, PART, source)
    assert len(source.asked) == MAX_RESUMES + 1


def failing(error: Exception) -> Callable[[int, int], Answer]:
    def open_range(start: int, end: int) -> Answer:
        raise error

    return open_range


def test_an_error_of_one_thread_ends_all_and_is_the_callers(file: int) -> None:
    with pytest.raises(StoreError, match="refused") as raised:
        download_ranges(file, 50 * PART, failing(StoreError("refused")))
    assert not isinstance(raised.value, StoreUnavailable)
    assert not [thread for thread in threading.enumerate() if thread.name == "download"]


def test_what_progress_raises_ends_all_threads(file: int) -> None:
    source = Source(bytes(200 * PART))

    def end(done_bytes: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        download_ranges(file, len(source.data), source, on_progress=end)
    assert source.open == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "download"]


def test_no_more_threads_than_parts_and_no_more_than_the_limit(file: int) -> None:
    most = 0

    def note(done_bytes: int) -> None:
        nonlocal most
        most = max(most, len([thread for thread in threading.enumerate() if thread.name == "download"]))

    download_ranges(file, 2 * PART, Source(bytes(2 * PART)), on_progress=note)
    assert most <= 2
    download_ranges(file, 100 * PART, Source(bytes(100 * PART)), on_progress=note)
    assert most <= THREADS


def test_connections_are_bounded_over_all_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_connections", threading.BoundedSemaphore(2))
    source = Source(bytes(100 * PART))

    def download(number: int) -> None:
        with open(tmp_path / str(number), "w+b") as opened:
            download_ranges(opened.fileno(), len(source.data), source)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(download, range(4)))
    assert source.most_open == 2
