"""Listings: what the repository's store holds, asked for each time, and remembered on disk for when it is away.

So a worker that starts while the store cannot be reached serves what this machine has. Must not know models.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from store import ObjectInfo, ObjectStore, StoreUnavailable
from store.published_file import publish, write_beside

log = structlog.get_logger()

_DIRECTORY = "listings"
T = TypeVar("T")


class Listings:
    """Listings of one store; `directory` is the node cache's. Safe to call from any number of threads."""

    def __init__(self, directory: Path, store: ObjectStore) -> None:
        self._directory = directory / _DIRECTORY
        self._store = store

    def objects(self, prefix: str) -> list[ObjectInfo]:
        """See ObjectStore.list. The last answer when the store is away and there is one."""
        return self._remembered(f"list {prefix}", lambda: list(self._store.list(prefix)), list[ObjectInfo])

    def children(self, prefix: str) -> list[str]:
        """See ObjectStore.list_children. The last answer when the store is away and there is one."""
        return self._remembered(f"children {prefix}", lambda: self._store.list_children(prefix), list[str])

    def _remembered(self, question: str, ask: Callable[[], T], kind: type[T]) -> T:
        name = hashlib.sha256(f"{self._store.url} {question}".encode()).hexdigest()
        path = self._directory / f"{name}.json"
        try:
            answer = ask()
        except StoreUnavailable as error:
            try:
                known = msgspec.json.decode(path.read_bytes(), type=kind)
            except (OSError, msgspec.DecodeError):
                raise error from error.__cause__
            log.warning("use_last_listing", store=self._store.url, question=question, error=str(error))
            return known
        self._note(path, msgspec.json.encode(answer))
        return answer

    def _note(self, path: Path, text: bytes) -> None:
        with contextlib.suppress(OSError):  # a full disk is told where it matters
            if not path.exists() or path.read_bytes() != text:
                self._directory.mkdir(parents=True, exist_ok=True)
                publish(write_beside(os.fspath(path), (text,)), os.fspath(path))
