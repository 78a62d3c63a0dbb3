"""The object store as its callers see it: the protocol, its errors, and the rules for keys.

It must not know a file system, S3, or what anyone keeps in a store.
"""

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

# Names of files being written. No key may have such a segment, and no listing ever shows one.
TEMPORARY_PREFIX = ".tidegate-tmp-"
# S3's own limit, held by every store so that what works in a directory works in a bucket.
MAX_KEY_BYTES = 1024


class StoreError(Exception):
    """A store failed. `retryable` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False


class ObjectNotFound(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """There is no object at this key."""


class StoreUnavailable(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """The store did not answer, or not in full: connection, 5xx, throttling, an object that changed underway."""

    retryable = True


class DigestMismatch(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """The bytes that came are not those that their publisher, or the store, told the digest of."""


class DiskFull(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """There is no room for an object now, and nothing that could make way. `budget_bytes` is all that may be used."""

    retryable = True

    def __init__(self, what: str, *, need_bytes: int, free_bytes: int, budget_bytes: int) -> None:
        super().__init__(f"no room for {what}: it needs {need_bytes} bytes, {free_bytes} of {budget_bytes} are free")
        self.need_bytes = need_bytes
        self.free_bytes = free_bytes
        self.budget_bytes = budget_bytes


class StoreDenied(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """The store refuses these credentials, or this user."""


class StoreUrlError(StoreError):
    """The url names no store that can be opened."""


class KeyRefused(StoreError):  # noqa: N818 - the name says what is so, as callers read it
    """The key could name something outside the store, or nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store knows of an object without reading it. `modified_ms` is Unix time by the store's clock."""

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


class ObjectStore(Protocol):
    """Objects under '/'-separated keys. Synchronous, and safe to call from any number of threads.

    Every method checks its key before any I/O and raises KeyRefused for a bad one. Every method raises StoreUnavailable
    (retryable) and StoreDenied, and StoreError for what it has no name for.
    """

    @property
    def url(self) -> str:
        """The store's address, as open_store takes it."""

    def get(self, key: str) -> bytes:
        """The whole object, at one version. Raises ObjectNotFound."""

    def head(self, key: str) -> ObjectInfo:
        """What is known of the object. Raises ObjectNotFound."""

    def put(self, key: str, data: bytes | bytearray | memoryview, *, if_absent: bool = False) -> bool:
        """Write an object; durable when this returns, and no reader ever sees half of it.

        With `if_absent` nothing is overwritten: False when the key existed. A request that was repeated underway, and
        finds its own bytes at the key, is True; so bytes that must have one owner should say whose they are.
        """

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is fine."""

    def presign(self, key: str, *, expires_s: int, content_type: str = "") -> str | None:
        """A URL at which anyone may read the object, and nothing else, for so long; None when the store has no such.

        Whoever reads is told `content_type`. Whether the object is there is not looked at. Credentials that end sooner
        end the URL with them.
        """

    def list_children(self, prefix: str) -> builtins.list[str]:
        """The names right below a prefix, sorted; one that holds more carries a trailing '/'.

        Such a name may be empty of objects: an empty directory, or a directory marker.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects below a prefix, recursive, sorted by key, read lazily.

        The prefix is a whole path ('a' and 'a/' list 'a/x', never 'a-hf/y' nor 'a' itself); '' is everything.
        Directory markers, and names that are no valid keys, are skipped.
        """

    def download(
        self,
        key: str,
        path: Path,
        *,
        expected: ObjectInfo | None = None,
        sha256: bytes = b"",
        on_progress: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        """Write one version of an object to `path`, in bounded memory; path's directory must exist.

        Written beside `path`, checked for its size and what is known of its digest, published by rename: on any error
        nothing is left and what was at `path` stays. `expected` (from a listing) spares the question for the object's
        size; the version must be that one. `sha256` is what its publisher says. `on_progress` gets the bytes so far,
        in the caller's thread; what it raises ends the download. Raises ObjectNotFound, DigestMismatch,
        StoreUnavailable for an object that was replaced, and OSError when `path` cannot be written.
        """


def check_key(key: str) -> None:
    """Raise KeyRefused unless the key is relative and has only plain segments ('a/b.bin')."""
    reason = _fault(key)
    if reason:
        raise KeyRefused(f"key {key!r} is refused: {reason}; give a relative path such as 'models/a/1/model.onnx'")


def check_prefix(prefix: str) -> str:
    """The prefix as it begins every key below it: '' or 'a/b/'. Raises KeyRefused; one trailing '/' is fine."""
    if not prefix:
        return ""
    path = prefix.removesuffix("/")
    check_key(path)
    return path + "/"


def is_key(key: str) -> bool:
    """Whether check_key lets this key pass."""
    return not _fault(key)


def _fault(key: str) -> str:
    """Why a key is refused; '' when it is fine."""
    try:
        length_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not 0 < length_bytes <= MAX_KEY_BYTES:
        return f"it has {length_bytes} bytes, of 1 to {MAX_KEY_BYTES}"
    if "\0" in key:
        return "it holds a NUL"
    if key.startswith("/"):
        return "it is absolute"
    for segment in key.split("/"):
        if not segment:
            return "it has an empty segment"
        if segment in {".", ".."}:
            return f"it has a {segment!r} segment"
        if segment.startswith(TEMPORARY_PREFIX):
            return f"names that begin with {TEMPORARY_PREFIX!r} are kept for files being written"
    return ""
