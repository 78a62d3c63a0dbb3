"""Lease: which gateway holds which partition of the replies topic, told by the metadata of its commits. Pure.

The last commit is the holder's. Whoever reads another's name in the partition that it took for its own has lost it, so
of two that took the same one at the same time exactly one goes on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

LEASE_MS = 15_000


class Committed(Protocol):
    """A committed offset's metadata."""

    @property
    def metadata(self) -> str:
        """The text beside the offset."""
        ...


def lease(gateway_id: str, *, now_ms: int) -> str:
    """The metadata of a commit by a gateway that goes on holding the partition."""
    return f"{gateway_id}/{now_ms}"


def holder(commit: Committed | None, *, now_ms: int) -> str:
    """The id of the living gateway that holds the partition of this commit; empty when none does."""
    if commit is None:
        return ""
    gateway_id, _, at_ms = commit.metadata.rpartition("/")
    return gateway_id if at_ms.isdecimal() and abs(now_ms - int(at_ms)) < LEASE_MS else ""


def free_partitions(commits: Mapping[int, Committed], count: int, *, now_ms: int) -> list[int]:
    """The partitions that nobody holds."""
    return [partition for partition in range(count) if not holder(commits.get(partition), now_ms=now_ms)]


def pick_partition(commits: Mapping[int, Committed], count: int, *, now_ms: int, rng: random.Random) -> int:
    """A random partition among those that nobody holds; when all are held, among all."""
    return rng.choice(free_partitions(commits, count, now_ms=now_ms) or range(count))
