"""TenantQueues: the jobs that each tenant has put into models' queues through this gateway, and no worker has ended.

Kafka knows how long a queue is, not whose records are in it. A job counts from the broker's acknowledgement until the
pool's progress, as Kafka tells it, has passed it. Pure: asks nobody. In memory: who restarts begins at zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

from schemas.control import ModelAnnouncement
from schemas.progress import Progress


class TenantQueues:
    """Counts of the tenants whose queue has a limit; nothing is kept of others."""

    def __init__(self, limit_of: Callable[[str], int]) -> None:
        """`limit_of`: by tenant, how many jobs it may have queued; 0: no limit. It bounds what is kept here, up to
        the requests that are under way when it is reached.
        """
        self._limit_of = limit_of
        # By model and epoch: a topic that was made anew counts its offsets from zero.
        self._offsets: dict[tuple[str, int], dict[int, dict[int, str]]] = {}  # by partition: tenants by offset
        self._counts: dict[str, int] = {}

    def count(self, tenant: str) -> int:
        """How many jobs of this tenant wait or run."""
        return self._counts.get(tenant, 0)

    def models(self) -> Collection[str]:
        """The models in whose queues something is."""
        return {model for model, _ in self._offsets}

    def put(self, tenant: str, model: ModelAnnouncement, place: tuple[int, int, int]) -> None:
        """The broker took a job of this tenant: (partition, offset, time in milliseconds)."""
        if not self._limit_of(tenant):
            return
        partition, offset, _ = place
        partitions = self._offsets.setdefault((model.metadata.name, model.epoch), {})
        partitions.setdefault(partition, {})[offset] = tenant
        self._counts[tenant] = self.count(tenant) + 1

    def settle(self, model: str, epoch: int, partitions: Sequence[Progress]) -> None:
        """Count no more what the pool has done; `partitions`: how far it is with each. Other epochs are over."""
        for key in [key for key in self._offsets if key[0] == model]:
            known = self._offsets[key]
            for partition, tenants in list(known.items()):
                if key[1] == epoch and partition < len(partitions):
                    ended = _ended(tenants, partitions[partition])
                else:
                    ended = list(tenants)
                for offset in ended:
                    self._count_down(tenants.pop(offset))
                if not tenants:
                    del known[partition]
            if not known:
                del self._offsets[key]

    def forget(self, model: str) -> None:
        """Count nothing of a model that is served no more."""
        self.settle(model, -1, ())

    def _count_down(self, tenant: str) -> None:
        left = self._counts[tenant] - 1
        if left:
            self._counts[tenant] = left
        else:
            del self._counts[tenant]


def _ended(offsets: Iterable[int], progress: Progress) -> list[int]:
    """The offsets that are done. They ascend, as the broker took them: behind the last done one none is looked at."""
    end = progress.done[-1][1] if progress.done else progress.committed
    return [offset for offset in itertools.takewhile(lambda offset: offset < end, offsets) if progress.is_done(offset)]
