"""An object store in a directory of a POSIX file system, shared by the processes of a machine or of a cluster's volume.

It must not know S3, nor what anyone keeps in it.
"""

import builtins
import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from store.digest import Digest
from store.object_store import (
    TEMPORARY_PREFIX,
    DigestMismatch,
    KeyRefused,
    ObjectInfo,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    check_key,
    check_prefix,
    is_key,
)
from store.published_file import publish, sync_directory, write_beside

CHUNK_BYTES = 1024 * 1024
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
# Full disks are emptied, handles are closed, network volumes come back.
_PASSING = {
    errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EHOSTDOWN, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE,
    errno.ENOSPC, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip


class DirectoryStore:
    """An ObjectStore whose keys are the paths of regular files below `root`.

    The root is made by the first put. Symbolic links are followed while they stay below the root; a key that leads out
    is refused, and a listing leaves it out. What differs from S3: 'a' and 'a/b' cannot both be objects (StoreError).
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)
        self.url = Path(self._root).as_uri()

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        check_key(key)
        with _translated("read", key), self._opened(key) as (file, _):
            return open(file, "rb", buffering=0, closefd=False).read()

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        check_key(key)
        with _translated("look at", key):
            status = os.stat(self._located(key))
        return _info_of_regular(key, status)

    def put(self, key: str, data: bytes | bytearray | memoryview, *, if_absent: bool = False) -> bool:
        """See ObjectStore.put."""
        check_key(key)
        parent, _, name = key.rpartition("/")
        with _translated("write", key, absent_is_not_found=False):
            path = os.path.join(self._located(parent), name)
            if if_absent and os.path.lexists(path):
                if os.path.isdir(path):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                sync_directory(os.path.dirname(path))
                return False
            try:
                temporary = write_beside(path, (data,))
            except FileNotFoundError:
                _make_directory(os.path.dirname(path))
                temporary = write_beside(path, (data,))
            return publish(temporary, path, if_absent=if_absent)

    def delete(self, key: str) -> None:
        """See ObjectStore.delete."""
        check_key(key)
        parent, _, name = key.rpartition("/")
        with _translated("delete", key), contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(os.path.join(self._located(parent), name))

    def presign(self, key: str, *, expires_s: int, content_type: str = "") -> str | None:
        """See ObjectStore.presign: a directory has no URLs for others."""
        check_key(key)
        return None

    def list_children(self, prefix: str) -> builtins.list[str]:
        """See ObjectStore.list_children. Raises StoreUnavailable when the root is not there."""
        prefix = check_prefix(prefix)
        with _translated("list", prefix):
            return [name for name, _ in self._children(self._located(prefix))]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore.list. Raises StoreUnavailable when the root is not there: that is no empty store."""
        return self._walk(check_prefix(prefix))

    def download(
        self,
        key: str,
        path: Path,
        *,
        expected: ObjectInfo | None = None,
        sha256: bytes = b"",
        on_progress: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        """See ObjectStore.download."""
        check_key(key)
        with contextlib.ExitStack() as stack:
            with _translated("read", key):
                file, info = stack.enter_context(self._opened(key))
            if expected and (info.etag, info.size_bytes) != (expected.etag, expected.size_bytes):
                raise StoreUnavailable(f"object {key!r} was replaced since it was listed")
            chunks = _chunks(file, info, on_progress)
            if sha256:
                chunks = _checked(chunks, key, Digest("sha256", sha256))
            temporary = write_beside(os.path.abspath(path), chunks)
        publish(temporary, os.path.abspath(path))
        return info

    def sweep(self, *, older_than_s: float = 3600) -> int:
        """Remove what killed writers left, once it is older than any write can take; how many files that were."""
        swept = 0
        with _translated("sweep", ""):
            for directory, _, names in os.walk(self._root):
                for name in names:
                    path = os.path.join(directory, name)
                    with contextlib.suppress(FileNotFoundError):
                        if name.startswith(TEMPORARY_PREFIX) and time.time() - os.stat(path).st_mtime > older_than_s:
                            os.unlink(path)
                            swept += 1
        return swept

    def _located(self, key: str) -> str:
        """The path of a key or prefix, every link followed. Raises KeyRefused when it lies outside the root."""
        root = os.path.realpath(self._root).rstrip("/")
        path = root
        for segment in key.split("/") if key else ():
            path = f"{path}/{segment}"
            if os.path.islink(path):  # rare, so that the usual key costs one look per segment and no more
                path = os.path.realpath(f"{root}/{key}")
                if not _is_below(path, root):
                    said = f"key {key!r} is refused: a symbolic link leads it out of {self.url}; copy the files in"
                    raise KeyRefused(said)
                break
        return path or "/"

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, ObjectInfo]]:
        """The file of a key, open for reading, and what is known of it."""
        # O_NONBLOCK: opening a named pipe must not wait for its writer.
        file = os.open(self._located(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            yield file, _info_of_regular(key, os.fstat(file))
        finally:
            os.close(file)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        """Depth first in key order. Each step carries the directories above it, links followed, to see a loop."""
        with _translated("list", prefix):
            steps: builtins.list[tuple[str, tuple[str, ...]]] = [(prefix, (self._located(prefix),))]
            while steps:
                key, above = steps.pop()
                if key and not key.endswith("/"):
                    with contextlib.suppress(FileNotFoundError, ObjectNotFound):  # gone since its directory was read
                        yield _info_of_regular(key, os.stat(above[-1]))
                    continue
                for name, path in reversed(self._children(above[-1])):
                    if path not in above and is_key(key + name.removesuffix("/")):
                        steps.append((key + name, (*above, path)))

    def _children(self, directory: str) -> builtins.list[tuple[str, str]]:
        """Names in a directory, a subdirectory's with '/', in key order, each with its path, links followed."""
        root = os.path.realpath(self._root)
        children: builtins.list[tuple[str, str]] = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    linked = entry.is_symlink()
                    path = os.path.realpath(entry.path) if linked else entry.path
                    if not is_key(entry.name) or (linked and not _is_below(path, root)):
                        continue
                    # os.path takes a link that leads nowhere, or round in circles, for nothing; an entry raises.
                    if os.path.isdir(path) if linked else entry.is_dir():
                        children.append((entry.name + "/", path))
                    elif os.path.isfile(path) if linked else entry.is_file():
                        children.append((entry.name, path))
        except (FileNotFoundError, NotADirectoryError) as error:
            if not os.path.isdir(self._root):
                raise StoreUnavailable(f"{self.url} is not there; make or mount the directory {self._root}") from error
        return sorted(children)


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _chunks(file: int, info: ObjectInfo, on_progress: Callable[[int], None] | None) -> Iterator[memoryview]:
    """The bytes of an open file. Raises StoreUnavailable when they are not those that `info` tells of."""
    buffer = memoryview(bytearray(min(CHUNK_BYTES, info.size_bytes + 1)))
    done_bytes = 0
    while True:
        with _translated("read", info.key):
            count = os.readv(file, [buffer])
        if not count:
            break
        yield buffer[:count]
        done_bytes += count
        if on_progress:
            on_progress(done_bytes)
    with _translated("read", info.key):
        after = _info_of_regular(info.key, os.fstat(file))
    if done_bytes != info.size_bytes or after.etag != info.etag:
        raise StoreUnavailable(
            f"object {info.key!r} changed while it was read: {done_bytes} of {info.size_bytes} bytes"
        )


def _checked(chunks: Iterator[memoryview], key: str, digest: Digest) -> Iterator[memoryview]:
    """The same chunks. Raises DigestMismatch after the last one."""
    hasher = digest.hasher()
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk
    differs = digest.told(hasher.digest())
    if differs:
        raise DigestMismatch(f"object {key!r} is damaged: {differs}")


def _info_of_regular(key: str, status: os.stat_result) -> ObjectInfo:
    if not stat.S_ISREG(status.st_mode):
        raise ObjectNotFound(f"no object at key {key!r}: not a regular file")
    return ObjectInfo(
        key=key,
        size_bytes=status.st_size,
        etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
        modified_ms=status.st_mtime_ns // 1_000_000,
    )


def _make_directory(directory: str) -> None:
    """Make a directory and those above it, each durable before it is used."""
    if not os.path.isdir(directory):
        parent = os.path.dirname(directory)
        _make_directory(parent)
        with contextlib.suppress(FileExistsError):  # another writer was first
            os.mkdir(directory)
        sync_directory(parent)


@contextmanager
def _translated(doing: str, key: str, *, absent_is_not_found: bool = True) -> Iterator[None]:
    """Turn the file system's errors into the store's."""
    try:
        yield
    except OSError as error:
        said = f"cannot {doing} {key!r}: {error.strerror}"
        if absent_is_not_found and error.errno in _ABSENT:
            raise ObjectNotFound(f"no object at key {key!r}") from error
        if error.errno in _DENIED:
            raise StoreDenied(said) from error
        if error.errno in _PASSING:
            raise StoreUnavailable(said) from error
        if error.errno == errno.ENAMETOOLONG:
            raise KeyRefused(said) from error
        raise StoreError(said) from error
