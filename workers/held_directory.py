"""HeldDirectory: a directory of this machine's disk and the lock on it, which ends with the process that holds it.

The lock is the kernel's (flock) and lies on the directory itself, wherever that is renamed to: so a killed process
leaves nothing behind, and no lock file outlives what it guards. Local disks only. Knows nothing of what is in there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class HeldDirectory:
    """Made by `shared` and `alone`; held until closed. Two in one process exclude each other as two processes do."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    @classmethod
    def shared(cls, path: Path) -> HeldDirectory | None:
        """Hold it as others may, too. None: it is not there, or someone has it alone."""
        return cls._try(path, fcntl.LOCK_SH)

    @classmethod
    def alone(cls, path: Path, *, make: bool = False) -> HeldDirectory | None:
        """Hold it as nobody else does. None: it is not there, or held. `make`: make it first."""
        if make:
            with contextlib.suppress(FileExistsError):
                path.mkdir()
        return cls._try(path, fcntl.LOCK_EX)

    @classmethod
    def _try(cls, path: Path, kind: int) -> HeldDirectory | None:
        try:
            held = cls(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(held._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            return None
        if not held.is_in_place():  # renamed or removed before it was locked
            held.close()
            return None
        return held

    def is_in_place(self) -> bool:
        """Whether the path still leads to what is held."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._file))

    def rename(self, path: Path) -> None:
        """Move it, lock and all. Raises OSError when something is there."""
        os.rename(self.path, path)
        self.path = path

    def share(self) -> bool:
        """Let others hold it, too; False when someone took it alone in this moment, which flock allows."""
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return self.is_in_place()

    def touch(self) -> None:
        """Note that it was used now, in its modification time."""
        os.utime(self._file)

    def close(self) -> None:
        """Let go. Idempotent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)
