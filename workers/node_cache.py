"""NodeCache: objects of a store as files of this machine, fetched once for all of its processes.

Entries are named by what is in them: addresses, sizes and etags. One process fetches an entry, others wait for it. An
entry appears whole (cache_entry.py), within the budget (cache_budget.py). Must not know models.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from store import DigestMismatch, DiskFull, ObjectInfo, ObjectStore
from workers.cache_budget import FETCHING_PREFIX, CacheBudget
from workers.cache_entry import FILES, CachedFile, CacheEntry, Manifest, read_manifest
from workers.held_directory import HeldDirectory
from workers.sha256sums import SHA256SUMS, parse_sha256sums

# Called with the bytes that are here and the bytes in all.
OnProgress = Callable[[int, int], None]

_FILES_AT_ONCE = 4  # many small files take round trips, not bytes
_TRIES = 3  # of an object that comes damaged
_WAIT_S = 0.05
_FULL = {errno.ENOSPC, errno.EDQUOT}


class NodeCache:
    """A directory of a local disk, shared by the processes that name it, for the objects of one store each.

    Made when first needed. `budget_bytes` 0: see CacheBudget. Safe to call from any number of threads.
    """

    def __init__(self, directory: Path, store: ObjectStore, *, budget_bytes: int = 0) -> None:
        self._directory = directory
        self._store = store
        self._budget = CacheBudget(directory, budget_bytes)
        self._sweeping = threading.Lock()
        self._is_swept = False

    def fetch(self, objects: Sequence[ObjectInfo], *, prefix: str, on_progress: OnProgress) -> CacheEntry:
        """The objects as files, their keys less the prefix; held until the entry is closed.

        What `on_progress` raises ends the call; after any error nothing is left. Raises StoreError: DigestMismatch when
        an object keeps coming damaged, CacheTooSmall before a byte is fetched, DiskFull; and OSError.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self._sweep_once()
        key = entry_key(self._store.url, objects)
        total_bytes = sum(info.size_bytes for info in objects)
        while True:
            entry = self._find(key) or self._make(key, objects, prefix, on_progress)
            if entry:
                on_progress(total_bytes, total_bytes)
                return entry
            on_progress(0, total_bytes)  # another thread or process is at it
            time.sleep(_WAIT_S)

    def _sweep_once(self) -> None:
        with self._sweeping:
            if not self._is_swept:
                self._budget.sweep()
                self._is_swept = True

    def _find(self, key: str) -> CacheEntry | None:
        """The entry, if it is there and whole. A part of one, which somebody else must have made so, is removed."""
        path = self._directory / key
        held = HeldDirectory.shared(path)
        if held is None:
            return None
        manifest = read_manifest(path)
        if manifest is None:
            held.close()
            self._budget.discard(path)
            return None
        held.touch()
        return CacheEntry(held, key=key, size_bytes=manifest.size_bytes)

    def _make(self, key: str, objects: Sequence[ObjectInfo], prefix: str, on_progress: OnProgress) -> CacheEntry | None:
        """Fetch the entry; None when somebody else does, or just did."""
        fetching = HeldDirectory.alone(self._directory / f"{FETCHING_PREFIX}{key}", make=True)
        if fetching is None:
            return None
        try:
            if (self._directory / key).exists():  # made between our look and our lock
                return None
            self._budget.reserve(fetching, sum(info.size_bytes for info in objects), prefix)
            manifest = self._fill(fetching.path, objects, prefix, on_progress)
            manifest.write(fetching.path)
            self._budget.publish(fetching, self._directory / key)
            if not fetching.share():
                return None
            entry = CacheEntry(fetching, key=key, size_bytes=manifest.size_bytes)
            fetching = None
            return entry
        finally:
            if fetching:
                if fetching.path.name != key:
                    self._budget.release(fetching)
                fetching.close()

    def _fill(self, fetching: Path, objects: Sequence[ObjectInfo], prefix: str, on_progress: OnProgress) -> Manifest:
        """Fetch all files, a second time when the disk was full and there was something to evict."""
        for is_last in (False, True):
            try:
                return self._download_all(fetching / FILES, objects, prefix, on_progress)
            except OSError as error:
                if error.errno not in _FULL or is_last:
                    raise
                shutil.rmtree(fetching / FILES)
                try:
                    self._budget.make_way(sum(info.size_bytes for info in objects), prefix)
                except DiskFull as full:
                    raise full from error
        raise AssertionError  # the loop ends in its last round

    def _download_all(
        self, files: Path, objects: Sequence[ObjectInfo], prefix: str, on_progress: OnProgress
    ) -> Manifest:
        files.mkdir()
        paths = {info.key.removeprefix(prefix): info for info in objects}
        sums: dict[str, str] = {}
        progress = _Progress(sum(info.size_bytes for info in objects), on_progress)
        if SHA256SUMS in paths:
            self._download(paths[SHA256SUMS], files / SHA256SUMS, "", progress)
            sums = parse_sha256sums((files / SHA256SUMS).read_bytes(), of=prefix, names=paths.keys())
        for path in paths:
            (files / path).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="fetch") as threads:
            fetches = [
                threads.submit(self._download, info, files / path, sums.get(path, ""), progress)
                for path, info in paths.items()
                if path != SHA256SUMS
            ]
            try:
                for fetch in fetches:
                    fetch.result()
            except BaseException:
                progress.end()
                raise
        return Manifest(
            source=f"{self._store.url}/{prefix}",
            files=tuple(
                CachedFile(path, info.size_bytes, info.etag, sums.get(path, "")) for path, info in paths.items()
            ),
        )

    def _download(self, info: ObjectInfo, path: Path, sha256: str, progress: _Progress) -> None:
        """Fetch one file, again when it comes damaged, within reason."""
        for tries_left in range(_TRIES - 1, -1, -1):
            try:
                self._store.download(
                    info.key, path, expected=info, sha256=bytes.fromhex(sha256), on_progress=progress.of_file()
                )
                return
            except DigestMismatch:
                if not tries_left:
                    raise


class _Ended(Exception):  # noqa: N818 - what happens, not an error
    """Another file of the same entry could not be fetched."""


class _Progress:
    """Adds up what the files' threads tell, and tells it in one of them at a time. Never less than before."""

    def __init__(self, total_bytes: int, on_progress: OnProgress) -> None:
        self._total_bytes = total_bytes
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done_bytes = 0
        self._told_bytes = 0
        self._is_ended = False

    def of_file(self) -> Callable[[int], None]:
        """For the progress of one file's download from its begin; what it told in an earlier try counts no more."""
        before_bytes = 0

        def tell(done_bytes: int) -> None:
            nonlocal before_bytes
            with self._lock:
                if self._is_ended:
                    raise _Ended
                self._done_bytes += done_bytes - before_bytes
                before_bytes = done_bytes
                if self._done_bytes > self._told_bytes:
                    self._told_bytes = min(self._done_bytes, self._total_bytes)
                    self._on_progress(self._told_bytes, self._total_bytes)

        return tell

    def end(self) -> None:
        """End the downloads that still tell."""
        with self._lock:
            self._is_ended = True


def entry_key(url: str, objects: Sequence[ObjectInfo]) -> str:
    """What the objects are: addresses, sizes and etags. Not etags alone, for not every server's are of the content."""
    names = msgspec.json.encode([url, [(info.key, info.size_bytes, info.etag) for info in objects]])
    return hashlib.sha256(names).hexdigest()
