"""WebhookStates: how each job's webhook stands, objects in the store. Apart from the job's own state, which is final.

The key follows from the job's origin, as its outcome's does. Knows no HTTP and no Kafka.
"""

from __future__ import annotations

import asyncio
from enum import Enum

import msgspec

from gateway.webhook_delivery import WebhookDelivery
from schemas.record import Origin
from store.object_store import ObjectNotFound, ObjectStore


class WebhookStage(Enum):
    """Where a delivery stands. NONE: there is nothing to deliver, or not yet."""

    NONE = "none"
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class WebhookState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a webhook stands. Times are Unix milliseconds, 0 for what has not happened. For the rest see the delivery.

    `status` is the last answer's, 0 when there was none; `error` is empty when the last attempt was taken.
    """

    stage: WebhookStage
    url: str = ""
    generation: int = 0
    failures: int = 0
    attempts: int = 0
    status: int = 0
    error: str = ""
    first_ms: int = 0
    last_ms: int = 0
    next_ms: int = 0
    delivered_ms: int = 0

    def supersedes(self, delivery: WebhookDelivery) -> bool:
        """Whether the delivery is a repeat of what has been done: delivered, tried again since, or begun anew.

        Records come twice when a process dies between what it did and its commit. Without this each would go its own
        way through the schedule, and the receiver would hear of the job by all of them.
        """
        if delivery.generation != self.generation:
            return delivery.generation < self.generation
        return self.stage is not WebhookStage.PENDING or delivery.failures < self.failures


_decoder = msgspec.json.Decoder(WebhookState)


def webhook_key(origin: Origin, epoch: int) -> str:
    """The object key of a webhook's state."""
    return f"webhooks/{origin.topic}/{epoch:08x}/{origin.partition}/{origin.offset:020d}"


class WebhookStates:
    """States in the store. All access happens in threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def load(self, origin: Origin, epoch: int) -> WebhookState | None:
        """The state of a job's webhook; None before its first attempt. Raises StoreError."""
        try:
            data = await asyncio.to_thread(self._store.get, webhook_key(origin, epoch))
        except ObjectNotFound:
            return None
        try:
            return _decoder.decode(data)
        except msgspec.DecodeError:  # of another version, or damaged: a repeat is better than silence
            return None

    async def keep(self, origin: Origin, epoch: int, state: WebhookState) -> None:
        """Write it. Raises StoreError."""
        await asyncio.to_thread(self._store.put, webhook_key(origin, epoch), msgspec.json.encode(state))
