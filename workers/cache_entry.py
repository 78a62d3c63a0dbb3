"""CacheEntry: files of the repository, whole, in the node cache, and held there while someone uses them.

On disk: `<key>/files/` and `<key>/manifest.json`, which is written last. Must not know stores.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from store.published_file import publish, sync_directory, write_beside
from workers.held_directory import HeldDirectory

FILES = "files"
_MANIFEST = "manifest.json"


class CachedFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file. `path` is relative to `files/`; `sha256` in hexadecimal digits where it was told and checked."""

    path: str
    size_bytes: int
    etag: str
    sha256: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """What an entry is made of. `source` is for people: the store's url and prefix."""

    source: str
    files: tuple[CachedFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    def write(self, entry: Path) -> None:
        """Make the entry whole: everything else in it must be on disk already, its directories excepted."""
        for directory, _, _ in os.walk(entry / FILES, topdown=False):
            sync_directory(directory)
        path = os.fspath(entry / _MANIFEST)
        publish(write_beside(path, (msgspec.json.encode(self),)), path)


def read_manifest(entry: Path) -> Manifest | None:
    """An entry's manifest; None for a part of an entry: no manifest, or a file that is missing or not of its size."""
    try:
        manifest = msgspec.json.decode((entry / _MANIFEST).read_bytes(), type=Manifest)
        for file in manifest.files:
            if os.stat(entry / FILES / file.path).st_size != file.size_bytes:
                return None
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    return manifest


class CacheEntry:
    """An entry that nobody evicts until it is closed."""

    def __init__(self, held: HeldDirectory, *, key: str, size_bytes: int) -> None:
        self._held = held
        self.key = key
        self.size_bytes = size_bytes
        self.path = held.path / FILES

    def close(self) -> None:
        """Let it go. Idempotent."""
        self._held.close()
