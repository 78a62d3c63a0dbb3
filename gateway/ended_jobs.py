"""EndedJobs: the outcomes that webhooks tell of, in the object store. Knows no HTTP.

A plain producer's request has its outcome on the results topic only; one with a webhook is stored as well, so that the
message can be made again, and the links in it lead somewhere.
"""

from __future__ import annotations

import asyncio

from gateway.catalogue import Catalogue
from gateway.kafka_client import Record
from gateway.outcomes import Outcomes
from gateway.webhook_delivery import WebhookDelivery
from schemas.outcome import Outcome, encode_stored, outcome_key
from store.object_store import ObjectNotFound, ObjectStore

_LEARN_S = 10.0  # for a model's announcement to be read, which is written before its first result
_LOOK_EVERY_S = 0.2


class EndedJobs:
    """Finds and keeps outcomes by the deliveries that tell of them."""

    def __init__(self, *, catalogue: Catalogue, outcomes: Outcomes, store: ObjectStore) -> None:
        self._catalogue = catalogue
        self._outcomes = outcomes
        self._store = store

    async def epoch(self, topic: str) -> int | None:
        """The epoch of a request topic; None for one that no model has."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _LEARN_S
        while (model := self._catalogue.of_topic(topic)) is None:
            if loop.time() > until_s:
                return None
            await asyncio.sleep(_LOOK_EVERY_S)
        return model.epoch

    async def load(self, delivery: WebhookDelivery) -> Outcome | None:
        """The outcome; None when it is not there any more. Raises InferenceError(UNAVAILABLE)."""
        return await self._outcomes.load(delivery.origin, delivery.epoch)

    async def keep(self, record: Record, outcome: Outcome, epoch: int) -> None:
        """Store the outcome of a result record unless it is. Raises StoreError or InferenceError(UNAVAILABLE)."""
        key = outcome_key(outcome.origin, epoch)
        try:
            await asyncio.to_thread(self._store.head, key)
        except ObjectNotFound:
            whole = await self._outcomes.of_record(record) if outcome.claim else outcome
            await asyncio.to_thread(self._store.put, key, encode_stored(whole), if_absent=True)
