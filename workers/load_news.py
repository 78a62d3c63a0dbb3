"""LoadNews: tells the installation, through the control topic, how far this worker is with loading a model.

At most one record a second and model, only the latest state, and nothing of a load that is over in a moment: so nothing
piles up while the broker is away, and many small models that come and go are no load of their own. Knows no Kafka
client.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from msgspec import structs

from schemas.control import LoadProgress, encode_load_progress, loading_key
from workers.metrics import LOAD_PROGRESS
from workers.publisher import Publication, Publisher
from workers.resident import ModelKey

_EVERY_S = 1.0
_AFTER_S = 0.3  # a load that has ended by then is not told of
_UNDER_WAY = ("fetching", "loading")


class LoadNews:
    """Lives on the event loop."""

    def __init__(self, publisher: Publisher, *, control_topic: str) -> None:
        self._publisher = publisher
        self._control_topic = control_topic
        self._latest: dict[str, LoadProgress | None] = {}
        self._told: dict[str, LoadProgress | None] = {}
        self._resting: set[str] = set()
        self._is_closed = False

    def close(self) -> None:
        """Tell nothing any more."""
        self._is_closed = True

    def note(self, key: ModelKey, state: str, fetched_ratio: float) -> None:
        """A model's state has changed, or more of it is fetched."""
        model, version = key.ref.name, key.ref.version
        LOAD_PROGRESS.labels(model, version).set(fetched_ratio)
        is_under_way = state in _UNDER_WAY
        progress = LoadProgress(version, round(fetched_ratio, 2), time.time_ns() // 1_000_000)
        self._latest[model] = progress if is_under_way else None
        if is_under_way and self._told.get(model) is None and model not in self._resting:
            self._resting.add(model)
            asyncio.get_running_loop().call_later(_AFTER_S, self._wake, model)
        else:
            self._tell(model)

    def _tell(self, model: str) -> None:
        latest = self._latest.get(model)
        if self._is_closed or model in self._resting or latest == self._told.get(model):
            return
        self._told[model] = latest
        self._resting.add(model)
        value = None if latest is None else encode_load_progress(latest)
        self._publisher.publish(
            Publication(self._control_topic, 0, value, [], partial(self._rest, model), key=loading_key(model))
        )

    def _rest(self, model: str) -> None:
        asyncio.get_running_loop().call_later(_EVERY_S, self._wake, model)

    def _wake(self, model: str) -> None:
        self._resting.discard(model)
        latest = self._latest.get(model)
        if latest is not None:  # also without progress: a worker that says nothing any more may have died
            self._latest[model] = structs.replace(latest, at_ms=time.time_ns() // 1_000_000)
        self._tell(model)
