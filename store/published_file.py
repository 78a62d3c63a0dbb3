"""A file that appears whole or not at all: written under a temporary name beside its place, synced, then published.

It must not know keys, stores, or where the bytes come from.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

from store.object_store import TEMPORARY_PREFIX

# Data and size are what a new file needs on disk; its times may follow. macOS has only the stronger call.
sync_data = getattr(os, "fdatasync", os.fsync)


@contextlib.contextmanager
def file_beside(path: str) -> Iterator[tuple[int, str]]:
    """A new file in path's directory: open to read and write, and its name, to be given to publish.

    On disk when the block ends; when the block or the disk raise, the file is gone and the error passes through.
    """
    temporary = os.path.join(os.path.dirname(path), TEMPORARY_PREFIX + os.urandom(8).hex())
    # 0o666 less the umask: gateway and workers may run as different users of one group.
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield file, temporary
            sync_data(file)
        finally:
            os.close(file)
    except BaseException:
        os.unlink(temporary)
        raise


def write_beside(path: str, chunks: Iterable[bytes | bytearray | memoryview]) -> str:
    """Write chunks to a new file in path's directory, on disk when this returns; its name, to be given to publish.

    When the chunks or the disk raise, the file is gone and the error passes through.
    """
    with file_beside(path) as (file, temporary):
        for chunk in chunks:
            _write_all(file, chunk)
    return temporary


def publish(temporary: str, path: str, *, if_absent: bool = False) -> bool:
    """Give the temporary file its name, durably; False when `if_absent` and the name was taken.

    The temporary name is gone afterwards, also on an error (OSError).
    """
    published = True
    try:
        if if_absent:
            try:
                os.link(temporary, path, follow_symlinks=False)
            except FileExistsError:
                published = False
            os.unlink(temporary)
        else:
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    # Also when the name was taken: its owner may not have come this far yet, and "it exists" must survive a power cut.
    sync_directory(os.path.dirname(path))
    return published


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _write_all(file: int, chunk: bytes | bytearray | memoryview) -> None:
    view = memoryview(chunk)
    if not (view.c_contiguous and view.ndim == 1 and view.format == "B"):
        view = memoryview(view.tobytes())
    while view:
        # One write may take less than it is given, always so above 2 GiB.
        view = view[os.write(file, view) :]
