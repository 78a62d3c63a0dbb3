"""Job ids: a request's place in Kafka, signed. Whoever holds the key reads the place back, nobody else can make one.

Format, base64url without padding of: version byte 1; the first 10 bytes of a keyed BLAKE2b over all that follows, the
version and the tenant; the fields of `_FIXED`; the topic's name below `<prefix>.infer.`. The tenant is signed and not
in the id: to any other tenant the id is as good as made up. Pure: no clock, no Kafka, no store.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct

import msgspec

from schemas.errors import ErrorCode, InferenceError

_VERSION = b"\x01"
_OF_TENANT = b"\x02"  # begins what is signed for a tenant, so that it equals nothing that is signed without one
_DIGEST_BYTES = 10
_FIXED = struct.Struct(">BIIQQ")  # flags, epoch, partition, offset, created_ms
_KEPT = 1  # flag: the outcome comes as a reply and is stored by a gateway, not by the worker
_MAX_CHARS = 400


class Job(msgspec.Struct, frozen=True):
    """What a job id says.

    `name` is the request topic's name below the prefix, as a rule the model's. `kept`: the request was synchronous
    and its wait ran out, so the outcome is stored by a gateway when the reply comes, not by the worker.
    """

    name: str
    epoch: int
    partition: int
    offset: int
    created_ms: int
    kept: bool = False


def signing_key(secret: str) -> bytes:
    """The key for `encode_job_id` and `decode_job_id` from a secret of any length."""
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"tidegate-job-id").digest()


def encode_job_id(job: Job, *, key: bytes, tenant: str = "") -> str:
    """The id of a job, safe in a URL path. `tenant`: whose job it is; empty where there are no tenants."""
    fixed = _FIXED.pack(_KEPT if job.kept else 0, job.epoch, job.partition, job.offset, job.created_ms)
    body = fixed + job.name.encode()
    return base64.urlsafe_b64encode(_VERSION + _sign(body, key, tenant) + body).decode().rstrip("=")


def decode_job_id(text: str, *, key: bytes, tenant: str = "") -> Job:
    """Inverse of `encode_job_id`.

    Raises InferenceError(JOB_NOT_FOUND) for anything that was not made with `key` for `tenant`.
    """
    try:
        if len(text) > _MAX_CHARS:
            raise ValueError("too long")
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        digest, body = raw[1 : 1 + _DIGEST_BYTES], raw[1 + _DIGEST_BYTES :]
        if raw[:1] != _VERSION or not hmac.compare_digest(digest, _sign(body, key, tenant)):
            raise ValueError("not signed by this key")
        flags, epoch, partition, offset, created_ms = _FIXED.unpack_from(body)
        job = Job(body[_FIXED.size :].decode(), epoch, partition, offset, created_ms, bool(flags & _KEPT))
        if encode_job_id(job, key=key, tenant=tenant) != text:  # base64 has several spellings of the same bytes
            raise ValueError("not in its canonical form")
    except (ValueError, binascii.Error, struct.error) as cause:
        raise InferenceError(
            ErrorCode.JOB_NOT_FOUND,
            "there is no such job",
            field="id",
            value=text,
            remedy="use the id from the 202 response as it is; ids hold within one installation",
        ) from cause
    return job


def _sign(body: bytes, key: bytes, tenant: str) -> bytes:
    head = _VERSION
    if tenant:
        owner = tenant.encode()
        head = _OF_TENANT + len(owner).to_bytes(4, "big") + owner
    return hashlib.blake2b(head + body, key=key, digest_size=_DIGEST_BYTES).digest()
