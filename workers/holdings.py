"""Holdings: which partitions a member of the group holds, which it is giving up, and what is committed of them. Pure.

A partition moves in two rounds of the group, so that it never has two owners and nobody else's partitions stop for it:
in the first round every member keeps what it holds and learns what it is to give up; it gives that up when the work
that runs of it has ended; in the round that follows it is free and goes to its new owner (workers/deal.py). Knows no
Kafka client: a key is (topic, partition number).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from schemas.progress import Progress, inherited_progress
from workers.delivery import Partition

Key = tuple[str, int]
Commit = tuple[int, str | None]  # what a group has committed: offset, -1 if nothing, and metadata


class Rounds(Protocol):
    """Who is told of the group's rounds, in which its partitions are dealt out anew."""

    def claim(self, *, is_member: bool) -> Collection[Key]:
        """A round begins: what we own. `is_member` False: the group has put us out, nothing is ours any more."""
        ...

    def assign(self, assigned: set[Key]) -> None:
        """A round has ended with this for us."""
        ...


class Holdings:
    """One member's partitions.

    `held`: ours to read. `parting`: no more work of them begins, but they stay ours, and committed, until released.
    """

    def __init__(self) -> None:
        self.held: dict[Key, Partition] = {}
        self.parting: dict[Key, Partition] = {}
        self._claimed: frozenset[Key] = frozenset()
        self._committed: dict[Key, Progress] = {}

    def claim(self) -> list[Key]:
        """What we tell the group that we own, with which a round begins."""
        self._claimed = frozenset((*self.held, *self.parting))
        return sorted(self._claimed)

    def assign(self, assigned: Iterable[Key]) -> list[Key]:
        """A round has ended with this for us: part with what is missing. Returns what is new to us, not held yet."""
        wanted = set(assigned)
        for key in [key for key in self.held if key not in wanted]:
            partition = self.parting[key] = self.held.pop(key)
            partition.lost = True
        return sorted(wanted - self.held.keys() - self.parting.keys())

    def is_stale(self, assigned: Iterable[Key]) -> bool:
        """Whether the round ended with something kept for us that we have released meanwhile: nobody has it now."""
        return not self._claimed <= {*assigned, *self.held, *self.parting}

    def add(self, partition: Partition) -> None:
        """A partition that was free is ours from now on."""
        self.held[partition.topic, partition.number] = partition

    def is_idle(self) -> bool:
        """Whether nothing runs of what we part with."""
        return not any(partition.running for partition in self.parting.values())

    def release(self, keys: Iterable[Key]) -> None:
        """These of what we part with are not ours any more."""
        for key in keys:
            self._committed.pop(key, None)
            self.parting.pop(key, None)

    def lose(self) -> None:
        """The group has put us out: nothing is ours, and nothing more is to be committed."""
        for partition in (*self.held.values(), *self.parting.values()):
            partition.lost = True
        self.held.clear()
        self.parting.clear()
        self._committed.clear()
        self._claimed = frozenset()

    def uncommitted(self) -> dict[Key, Progress]:
        """The progress of what is ours and has changed since it was committed."""
        changed: dict[Key, Progress] = {}
        for partitions in (self.held, self.parting):
            for key, partition in partitions.items():
                progress = partition.tracker.progress()
                if progress != self._committed.get(key):
                    changed[key] = progress
        return changed

    def committed(self, key: Key) -> int | None:
        """Up to where everything is done and committed, of a partition that is ours; None: not ours, or not known."""
        progress = self._committed.get(key)
        return None if progress is None else progress.committed

    def note_committed(self, committed: Mapping[Key, Progress]) -> None:
        """The group has taken this."""
        for key, progress in committed.items():
            if key in self.held or key in self.parting:
                self._committed[key] = progress


def inherited(commits: Mapping[Key, Commit], bounds: Mapping[Key, tuple[int, int]]) -> dict[Key, Progress]:
    """Where a new owner of each partition begins. `bounds`: the first offset and the one after the last."""
    return {
        key: inherited_progress(offset, metadata, first=bounds[key][0], end=bounds[key][1])
        for key, (offset, metadata) in commits.items()
    }
