"""DeviceMemory: the devices that models are loaded on, how much of each is in use, and how much models may hold.

RAM is this process's own; a GPU's memory is all that is used of it, for drivers tell no more of a container's
processes. Must not know models.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from workers import devices, process_memory

_RAM_RATIO = 0.7  # of what the process may use: the rest is for requests, runtimes and the page cache


@dataclass(frozen=True)
class DeviceMemory:
    """`budgets` and `readers` (bytes in use) are by device: "cpu", and "gpu0", "gpu1"... `cores`: what may be used."""

    budgets: dict[str, int]
    readers: dict[str, Callable[[], int]]
    gpus: tuple[int, ...] = ()
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


def device_memory(*, ram_bytes: int, gpu_ratio: float) -> DeviceMemory:
    """What there is here. `ram_bytes` 0: 70 % of what this process may use. `gpu_ratio`: of each GPU's free memory."""
    budgets = {"cpu": ram_bytes or int(_RAM_RATIO * process_memory.limit_bytes())}
    readers: dict[str, Callable[[], int]] = {"cpu": process_memory.used_bytes}
    gpus = devices.gpus()
    for gpu in gpus:
        used_bytes, total_bytes = devices.memory_bytes(gpu)
        budgets[f"gpu{gpu}"] = int(gpu_ratio * (total_bytes - used_bytes))
        readers[f"gpu{gpu}"] = partial(_used_bytes, gpu)
    return DeviceMemory(budgets, readers, gpus)


def _used_bytes(gpu: int) -> int:
    return devices.memory_bytes(gpu)[0]
