"""Outlook: what a queued job waits for, and how long that may take, as far as workers' reports tell. Pure but for them.

Knows no Kafka, no store and no route. What is not known is None: a made-up number is worse than none.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backlog import PartitionBacklog
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.load_times import LoadTimes
from gateway.restarts import Restarts
from gateway.service_rate import ServiceRates
from schemas.control import ModelAnnouncement

CRASH_LOOPING = "crash-looping: workers of the pool start again and again, and none has answered anything"


class Outlook:
    """The reasons and times of waiting, by model."""

    def __init__(
        self, *, catalogue: Catalogue, fleet: Fleet, rates: ServiceRates, restarts: Restarts, loads: LoadTimes
    ) -> None:
        self._catalogue = catalogue
        self._fleet = fleet
        self._rates = rates
        self._restarts = restarts
        self._loads = loads

    def reason(self, model: ModelAnnouncement, position: int, now_ms: int) -> str | None:
        """What a queued request waits for; None when there is nothing to say: its turn comes next."""
        name = model.metadata.name
        if self._restarts.is_crash_looping(model.pool, now_ms):
            return CRASH_LOOPING
        progress = self._catalogue.loading(name, now_ms)
        if progress is not None:
            return f"model loading, {progress.fetched_ratio:.0%} fetched"
        if not self._fleet.of_pool(model.pool, now_ms):
            return "no worker"
        states = self._states(model, now_ms)
        if "ready" not in states:
            if "fetching" in states or "loading" in states:
                return "model loading"
            if "failed" in states:
                return f"model does not load: {states['failed']}" if states["failed"] else "model does not load"
        return f"behind {position} request{'s' if position > 1 else ''}" if position else None

    def eta_s(
        self, model: ModelAnnouncement, position: int, partitions: Sequence[PartitionBacklog], now_ms: int
    ) -> float | None:
        """In how many seconds a queued request's turn may come: what is before it by the measured rate, and the time
        that a load under way still takes.
        """
        name = model.metadata.name
        if not self._fleet.of_pool(model.pool, now_ms):
            return None
        load_s: float | None = 0.0
        if self._catalogue.loading(name, now_ms) is not None:
            load_s = self._loads.left_s(name, now_ms)
        elif "ready" not in self._states(model, now_ms):
            load_s = self._loads.took_s(name)
        per_s = self._rates.per_s(name, now_ms)
        if load_s is None or per_s is None:
            return None
        # Its position is of its partition alone, and the workers' time goes to all partitions that have work.
        busy = max(1, sum(1 for partition in partitions if partition.records))
        return round(load_s + position * busy / per_s, 3)

    def _states(self, model: ModelAnnouncement, now_ms: int) -> dict[str, str]:
        """The states that the pool's workers have the model in, each with a reason that one of them tells."""
        workers = self._fleet.of_pool(model.pool, now_ms).values()
        return {
            each.state: each.reason for report in workers for each in report.models if each.name == model.metadata.name
        }
