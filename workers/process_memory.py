"""ProcessMemory: what this process holds of the machine's RAM, what it may hold, and how freed memory is given back.

Must not know models.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import psutil

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def used_bytes() -> int:
    """Resident memory of this process."""
    used: int = psutil.Process().memory_info().rss
    return used


def limit_bytes() -> int:
    """What this process may use: the machine's memory, or the container's limit where that is less."""
    limits = [int(psutil.virtual_memory().total)]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(path.read_text()))
    return min(limits)


def give_back() -> None:
    """Return freed memory to the machine, so that the next load's growth can be seen. glibc only; else nothing."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
