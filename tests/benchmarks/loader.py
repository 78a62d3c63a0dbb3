"""What a worker does until a model is ready, in its order, and nothing else: `python -m tests.benchmarks.loader`.

Prints one line then, of what each phase took. Imports what a worker imports, so that nothing is free.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from schemas.model import ModelRef
from store import open_store
from workers.backend import open_backend, preimport
from workers.repository import ModelRepository


def main(repository_url: str, model: str, cache: Path) -> None:
    """Load a model's highest version."""
    begun_s = time.perf_counter()
    imported_s = time.clock_gettime(time.CLOCK_BOOTTIME) - _started_s()
    repository = ModelRepository(open_store(repository_url), cache=cache)
    config = repository.read(model).config
    preimport(config.backend)
    read_s = time.perf_counter()
    with repository.fetch(ModelRef(model)) as fetched:
        fetched_s = time.perf_counter()
        backend = open_backend(config.backend)
        backend.load(fetched.path, config)
        backend.warm_up()
    ready_s = time.perf_counter()
    phases = {"start": imported_s, "read": read_s - begun_s, "fetch": fetched_s - read_s, "load": ready_s - fetched_s}
    print(", ".join(f"{name} {took_s:.2f} s" for name, took_s in phases.items()), flush=True)


def _started_s() -> float:
    """When this process began, by the clock that counts from the machine's start."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
