"""Cancellation: a control record that says: this request must not run any more, or its result is of no use.

A gateway writes it, workers follow; the worker that has acknowledged the request removes it. Knows no Kafka client.
"""

from __future__ import annotations

import msgspec

from schemas.record import Origin
from schemas.tensor import Buffer

_KEY = "cancel/"


class Cancellation(msgspec.Struct, frozen=True):
    """Who wants what cancelled since when, in milliseconds since the Unix epoch, by the gateway's clock."""

    at_ms: int
    reason: str = ""


_decoder = msgspec.json.Decoder(Cancellation)


def cancellation_key(origin: Origin, epoch: int) -> bytes:
    """The compaction key of a request's cancellation; its value is absent once nobody needs it any more."""
    return f"{_KEY}{epoch:08x}/{origin}".encode()


def encode_cancellation(cancellation: Cancellation) -> bytes:
    """The value of a cancellation's record."""
    return msgspec.json.encode(cancellation)


def decode_cancellation(key: Buffer | None, value: Buffer | None) -> tuple[Origin, int, Cancellation | None] | None:
    """Read a control record: (origin, epoch, cancellation), with None for one removed; None for other kinds of record,
    and for one that cannot be read: what it cancels runs, which is always right.
    """
    name = bytes(key or b"").decode(errors="replace")
    if not name.startswith(_KEY):
        return None
    try:
        epoch, _, origin = name.removeprefix(_KEY).partition("/")
        return Origin.parse(origin), int(epoch, 16), None if value is None else _decoder.decode(value)
    except (ValueError, msgspec.DecodeError):
        return None
