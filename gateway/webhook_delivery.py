"""WebhookDelivery: one webhook on its way, as it waits in the retry topic and lies among the dead letters.

It holds what leads to the outcome, not the outcome: a hundred thousand of them may wait.
"""

from __future__ import annotations

import msgspec

from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import Outcome
from schemas.record import Origin
from schemas.tensor import Buffer


class WebhookDelivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's webhook, and how far its delivery has come.

    `origin` and `epoch` are the job's identity, `created_ms` is part of its id. `generation` counts redeliveries that
    were asked for; each begins anew. `failures`: failed attempts of this generation, those that were spared because the
    endpoint was known to be down included; `attempts`: requests sent. `since_ms`: first attempt. `due_ms`: not before;
    `ready_ms`: when to look at the record. `error` says why the last attempt failed; `dead_ms`: when it was given up.
    """

    origin: Origin
    epoch: int
    url: str
    created_ms: int
    tenant: str = ""
    generation: int = 0
    failures: int = 0
    attempts: int = 0
    since_ms: int = 0
    due_ms: int = 0
    ready_ms: int = 0
    error: str = ""
    dead_ms: int = 0

    @classmethod
    def of(cls, outcome: Outcome, epoch: int) -> WebhookDelivery:
        """The first delivery of an outcome's webhook."""
        return cls(outcome.origin, epoch, outcome.webhook, outcome.created_ms, outcome.tenant)

    def again(self, generation: int) -> WebhookDelivery:
        """The same webhook from the start."""
        return WebhookDelivery(self.origin, self.epoch, self.url, self.created_ms, self.tenant, generation)


_decoder = msgspec.json.Decoder(WebhookDelivery)


def encode_delivery(delivery: WebhookDelivery) -> bytes:
    """The value of a retry record or dead letter."""
    return msgspec.json.encode(delivery)


def decode_delivery(value: Buffer | None) -> WebhookDelivery:
    """Inverse of `encode_delivery`. Raises InferenceError(UNDECODABLE_RECORD)."""
    try:
        return _decoder.decode(b"" if value is None else value)
    except msgspec.DecodeError as cause:
        raise InferenceError(
            ErrorCode.UNDECODABLE_RECORD, f"the record is no webhook delivery: {cause}", field="value"
        ) from cause
