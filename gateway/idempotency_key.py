"""Idempotency keys: what makes two requests the same one, and what is written about them. Pure; knows no store."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from schemas.errors import ErrorDetail, invalid

HEADER = b"idempotency-key"
_MAX_BYTES = 255


class Repeat(msgspec.Struct, frozen=True):
    """A request with an idempotency key. `place` is where its claims are kept, by tenant and key, under one prefix of
    the object store; `fingerprint` is equal for equal requests.
    """

    place: str
    fingerprint: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one request: a job, or the error that it was refused with."""

    job_id: str = ""
    error: ErrorDetail | None = None


class KeyClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who produces the answer for a key: `id` begins the ids of their requests. `at_ms` is their wall clock."""

    fingerprint: str
    id: str
    at_ms: int


def repeat_of(sent: Mapping[bytes, bytes], tenant: str, fingerprint: str) -> Repeat:
    """What the header Idempotency-Key, which must be there, says. Raises InferenceError(INVALID_REQUEST)."""
    key = sent[HEADER]
    if not 0 < len(key) <= _MAX_BYTES or not all(0x20 < byte < 0x7F for byte in key):
        raise invalid(
            "the idempotency key is not usable",
            field=HEADER.decode(),
            value=key.decode("latin-1"),
            remedy=f"send 1 to {_MAX_BYTES} visible ASCII characters, such as a UUID",
        )
    digest = hashlib.blake2b(key, key=_of(tenant.encode()), digest_size=20).hexdigest()
    return Repeat(f"idempotency/{digest[:2]}/{digest}", fingerprint)


def fingerprint(kind: str, model: str, body: bytes, *, version: str = "", header_length: int | None = None) -> str:
    """What a request is told apart by: its kind of call, model and body, not by how long its caller would wait."""
    named = msgspec.json.encode((kind, model, version, header_length))
    return hashlib.blake2b(named + b"\n" + body, digest_size=20).hexdigest()


def _of(tenant: bytes) -> bytes:
    """A hash key per tenant, so that none can meet another's keys."""
    return hashlib.blake2b(tenant, digest_size=32, person=b"tidegate-tenant").digest()
