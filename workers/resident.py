"""Resident: a model version that is loaded in this process, and who uses it.

A lane pins it while it has work; nothing that is pinned is unloaded. One that is asked to yield finishes what runs,
gives up its pin, and asks to be loaded again behind those who wait for the memory. Knows no Kafka and no store.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from schemas.model import ModelRef
from workers.instance import Instance
from workers.model_config import ModelConfig
from workers.placement import Placement
from workers.repository import FetchedVersion


class ModelKey(msgspec.Struct, frozen=True):
    """One state of one model version in the repository; `fingerprint` changes when its files or configuration do."""

    ref: ModelRef
    fingerprint: str = ""

    def __str__(self) -> str:
        return str(self.ref)


class Resident:
    """Lives on the event loop. `on_yield` is called when another model waits for the memory."""

    def __init__(
        self,
        key: ModelKey,
        config: ModelConfig,
        *,
        files: FetchedVersion,
        instances: list[Instance],
        placed: list[Placement],
        since_s: float,
        on_use: Callable[[Resident, bool], None],
    ) -> None:
        """`since_s`: when it became ready. `on_use` is told of each pin (True) and unpin (False)."""
        self.key = key
        self.config = config
        self.files = files
        self.instances = instances
        self.placed = placed
        self.missing: list[Placement] = []  # of instances that were abandoned and are not replaced yet
        self.since_s = since_s
        self.is_wanted_back = False
        self.is_gone = False
        self.on_yield: Callable[[], None] | None = None
        self._on_use = on_use

    def pin(self) -> bool:
        """Use it; False when it is being unloaded, or asked to yield: ask the cache again then."""
        if self.is_gone or self.is_wanted_back:
            return False
        self._on_use(self, True)
        return True

    def unpin(self) -> None:
        """One use has ended, after a `pin`."""
        self._on_use(self, False)

    def ask_back(self) -> None:
        """Ask its user to finish what runs and to unpin."""
        if not self.is_wanted_back:
            self.is_wanted_back = True
            if self.on_yield is not None:
                self.on_yield()
