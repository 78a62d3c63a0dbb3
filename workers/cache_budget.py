"""CacheBudget: the bytes that the node cache may use, reserved before they are written, and made by eviction.

Least recently used entries go first, held ones never. One process counts at a time, under a lock file. Must not know
stores, nor how an entry is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from store import DiskFull, StoreError
from store.published_file import sync_directory
from workers.cache_entry import read_manifest
from workers.held_directory import HeldDirectory

# Without a budget the cache leaves this share of the disk free; Kubernetes evicts pods from a node with less.
FREE_SHARE = 0.1
FETCHING_PREFIX = ".fetching-"
_EVICTING_PREFIX = ".evicting-"
_LOCK = ".lock"
_RESERVATION = "reserved_bytes"
_KEY = re.compile(r"[0-9a-f]{64}")


class CacheTooSmall(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """More than the cache may ever hold."""


class _Entry(NamedTuple):
    used_ns: int  # 0: a part of an entry, first to go
    size_bytes: int
    path: Path


class CacheBudget:
    """The room in one directory. `budget_bytes` 0: what the disk has, but for FREE_SHARE of it."""

    def __init__(self, directory: Path, budget_bytes: int) -> None:
        self._directory = directory
        self._budget_bytes = budget_bytes

    def reserve(self, fetching: HeldDirectory, need_bytes: int, what: str) -> None:
        """Set so many bytes aside for what is written in there; evict what that takes.

        Raises CacheTooSmall, and DiskFull when what is in the way is in use. Nothing is evicted in vain before either.
        """
        with self._locked():
            self._sweep()
            entries = self._entries()
            reserved_bytes = sum(map(_reserved_bytes, self._directory.glob(f"{FETCHING_PREFIX}*")))
            used_bytes = reserved_bytes + sum(entry.size_bytes for entry in entries)
            budget_bytes = self._budget(used_bytes)
            if need_bytes > budget_bytes:
                raise CacheTooSmall(
                    f"{what} has {need_bytes} bytes, the cache {self._directory} holds {budget_bytes} at most; "
                    "raise --cache-bytes, or give it a larger disk"
                )
            free_bytes = self._evict(entries, need_bytes, free_bytes=budget_bytes - used_bytes)
            if free_bytes < need_bytes:
                raise DiskFull(what, need_bytes=need_bytes, free_bytes=max(free_bytes, 0), budget_bytes=budget_bytes)
            (fetching.path / _RESERVATION).write_text(str(need_bytes))

    def make_way(self, need_bytes: int, what: str) -> None:
        """The disk was full although the budget was not: evict until it has so many bytes. Raises DiskFull."""
        with self._locked():
            self._sweep()
            self._evict(self._entries(), need_bytes, free_bytes=self._disk_free_bytes())
            free_bytes = self._disk_free_bytes()
            if free_bytes < need_bytes:
                budget_bytes = self._budget_bytes or shutil.disk_usage(self._directory).total
                raise DiskFull(what, need_bytes=need_bytes, free_bytes=free_bytes, budget_bytes=budget_bytes)

    def publish(self, fetched: HeldDirectory, entry: Path) -> None:
        """Make what was fetched an entry. Raises OSError when one is there."""
        with self._locked():  # it must count as one of the two at any moment
            fetched.rename(entry)
            sync_directory(os.fspath(self._directory))

    def release(self, fetching: HeldDirectory) -> None:
        """Remove what was to be an entry, and set nothing aside for it any more."""
        with self._locked():
            self._remove(fetching.path)

    def discard(self, entry: Path) -> None:
        """Remove what turned out to be a part of an entry, or what is in its place, held or not."""
        with self._locked():
            if read_manifest(entry) is None:
                self._remove(entry)

    def sweep(self) -> None:
        """Remove what killed processes left."""
        with self._locked():
            self._sweep()

    def _sweep(self) -> None:
        for path in self._directory.glob(f"{_EVICTING_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._directory.glob(f"{FETCHING_PREFIX}*"):
            dead = HeldDirectory.alone(path)
            if dead:
                with contextlib.closing(dead):
                    self._remove(path)

    def _evict(self, entries: list[_Entry], need_bytes: int, *, free_bytes: int) -> int:
        """Evict what nobody holds, least recently used first, until there is room; how much there is then."""
        for entry in entries:
            if free_bytes >= need_bytes:
                break
            held = HeldDirectory.alone(entry.path)
            if held:
                with contextlib.closing(held):
                    self._remove(entry.path)
                free_bytes += entry.size_bytes
        return free_bytes

    def _remove(self, path: Path) -> None:
        """Take a directory away at once, then remove it."""
        aside = self._directory / f"{_EVICTING_PREFIX}{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
            shutil.rmtree(aside, ignore_errors=True)

    def _entries(self) -> list[_Entry]:
        """All entries, least recently used first."""
        entries = []
        for path in self._directory.iterdir():
            if _KEY.fullmatch(path.name):
                manifest = read_manifest(path)
                used_ns = path.stat().st_mtime_ns if manifest else 0
                entries.append(_Entry(used_ns, manifest.size_bytes if manifest else _written_bytes(path), path))
        return sorted(entries)

    def _budget(self, used_bytes: int) -> int:
        """All that may be used. Of the disk, what fetches under way have reserved and not yet written counts once."""
        if self._budget_bytes:
            return self._budget_bytes
        unwritten_bytes = sum(
            max(_reserved_bytes(path) - _written_bytes(path), 0) for path in self._directory.glob(f"{FETCHING_PREFIX}*")
        )
        keep_bytes = int(shutil.disk_usage(self._directory).total * FREE_SHARE)
        return max(used_bytes - unwritten_bytes + self._disk_free_bytes() - keep_bytes, 0)

    def _disk_free_bytes(self) -> int:
        return shutil.disk_usage(self._directory).free

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        file = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _reserved_bytes(fetching: Path) -> int:
    try:
        return int((fetching / _RESERVATION).read_text() or 0)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _written_bytes(directory: Path) -> int:
    total_bytes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total_bytes += os.stat(os.path.join(parent, name)).st_blocks * 512
    return total_bytes
