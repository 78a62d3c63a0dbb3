"""WatchedFile: a small file that operators replace while the gateway runs. Knows nothing of what is in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from schemas.errors import InferenceError, invalid

_MAX_BYTES = 16 * 1024 * 1024
_Signature = tuple[int, int, int]


class WatchedFile:
    """Reads the file when it is another than the last time. File access happens in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: _Signature | None = None

    async def changed(self) -> bytes | None:
        """Its bytes, or None when nothing has changed since the last call that gave bytes or raised.

        Raises InferenceError(INVALID_REQUEST) when it cannot be read; each time, for as long as that is so.
        """
        try:
            return await asyncio.to_thread(self._read_if_changed)
        except OSError as cause:
            self._seen = None
            raise invalid(
                f"{self.path} cannot be read: {cause.strerror or type(cause).__name__}",
                field="path",
                value=self.path,
                remedy="check that it is there and that the gateway's user may read it",
            ) from cause

    def _read_if_changed(self) -> bytes | None:
        status = self.path.stat()
        signature = (status.st_mtime_ns, status.st_size, status.st_ino)
        if signature == self._seen:
            return None
        if status.st_size > _MAX_BYTES:
            raise _too_large(self.path)
        data = self.path.read_bytes()
        # As it was before the reading: a file that is written meanwhile is read again the next time.
        self._seen = signature
        return data


def _too_large(path: Path) -> InferenceError:
    return invalid(f"{path} has more than {_MAX_BYTES} bytes", field="path", value=path, remedy="name another file")
