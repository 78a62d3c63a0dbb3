"""Outcome: the one recorded end of a request, in its three forms: reply record, result record, stored object.

The key of the stored object follows from the request's origin and its topic's epoch, so that anyone who knows a job
id can find it and a repeat meets what is already there. Knows no Kafka client and no object store.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from schemas.errors import ErrorCode, ErrorDetail, InferenceError
from schemas.record import (
    ATTEMPT_HEADER,
    BINARY_CONTENT,
    JSON_CONTENT,
    SPEC_VERSION,
    TENANT_HEADER,
    WEBHOOK_HEADER,
    Headers,
    Origin,
    rfc3339,
)
from schemas.tensor import Buffer
from schemas.v2 import HEADER_LENGTH

RESPONSE_TYPE = b"tidegate.inference.response.v1"
_TYPE = ("ce_type", RESPONSE_TYPE)
_MAGIC = b"TGO1"  # first bytes of a stored outcome: format and version


class JobState(Enum):
    """Where a request stands. The last four are terminal: once recorded, they never change."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True when nothing more will happen to the request."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """How a request ended.

    `value` is a v2 response (its JSON part `header_length` bytes long, None: all JSON) when `state` is SUCCEEDED,
    else the JSON of an ErrorDetail. Times are milliseconds since the epoch: created by the broker's clock, started
    and finished by the worker's; started is 0 for a request that never ran. `claim` is the object key of a value that
    was too large; `value` is empty then, in records and in stored objects alike. `tenant` and `webhook` are the
    request's. `attempt` is the number of the last run, more than 1 after failures in passing.
    """

    id: str
    state: JobState
    origin: Origin
    value: Buffer
    header_length: int | None = None
    created_ms: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    traceparent: str = ""
    claim: str = ""
    tenant: str = ""
    webhook: str = ""
    attempt: int = 1

    def error(self) -> InferenceError | None:
        """The error of an outcome that is no success."""
        if self.state is JobState.SUCCEEDED:
            return None
        try:
            return InferenceError.from_detail(_error_decoder.decode(self.value))
        except msgspec.DecodeError:
            return InferenceError(ErrorCode.INTERNAL, "the recorded error cannot be read")


class _StoredHead(msgspec.Struct, omit_defaults=True):
    id: str
    state: JobState
    origin: Origin
    header_length: int | None = None
    created_ms: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    traceparent: str = ""
    tenant: str = ""
    webhook: str = ""
    claim: str = ""
    attempt: int = 1


_error_decoder = msgspec.json.Decoder(ErrorDetail)
_head_decoder = msgspec.json.Decoder(_StoredHead)


def error_value(error: InferenceError) -> bytes:
    """The value of an outcome that is no success."""
    return msgspec.json.encode(error.detail())


def state_of(error: InferenceError) -> JobState:
    """The terminal state that an error means. Refused early, as the deadline was out of reach, is expired too."""
    if error.code in (ErrorCode.DEADLINE_EXCEEDED, ErrorCode.OVERLOADED):
        return JobState.EXPIRED
    return JobState.CANCELLED if error.code is ErrorCode.CANCELLED else JobState.FAILED


def outcome_key(origin: Origin, epoch: int) -> str:
    """The object key of a request's outcome."""
    return f"outcomes/{origin.topic}/{epoch:08x}/{origin.partition}/{origin.offset:020d}"


def answer_key(origin: Origin, epoch: int, unique: str, *, lasting: bool = False) -> str:
    """The object key of an answer's value that is too large for a record or a stored outcome.

    `unique` tells one run from the next: a repeat must not overwrite the value that the recorded outcome speaks of.
    `lasting`: the answer is for consumers of the results topic, who read as late as its retention lets them; others are
    removed when a job's result is.
    """
    kind = "results" if lasting else "answers"
    return f"claims/{kind}/{origin.topic}/{epoch:08x}/{origin.partition}/{origin.offset:020d}-{unique}"


def outcome_headers(outcome: Outcome, source: bytes) -> list[tuple[str, bytes]]:
    """The headers of a reply or result record; `ce_id` is the request's, so that a repeat is recognised as one."""
    headers = [
        SPEC_VERSION,
        _TYPE,
        ("ce_id", outcome.id.encode()),
        ("ce_source", source),
        ("ce_time", rfc3339(outcome.finished_ms).encode()),
        _STATE_HEADER[outcome.state],
        ("tidegate-origin", str(outcome.origin).encode()),
        ("tidegate-times-ms", b"%d,%d,%d" % (outcome.created_ms, outcome.started_ms, outcome.finished_ms)),
    ]
    if outcome.header_length is None:
        headers.append(JSON_CONTENT)
    else:
        headers.append(BINARY_CONTENT)
        headers.append((HEADER_LENGTH, b"%d" % outcome.header_length))
    if outcome.traceparent:
        headers.append(("traceparent", outcome.traceparent.encode()))
    if outcome.claim:
        headers.append(("tidegate-claim", outcome.claim.encode()))
    if outcome.tenant:
        headers.append((TENANT_HEADER, outcome.tenant.encode()))
    if outcome.webhook:
        headers.append((WEBHOOK_HEADER, outcome.webhook.encode()))
    if outcome.attempt != 1:
        headers.append((ATTEMPT_HEADER, b"%d" % outcome.attempt))
    return headers


def decode_outcome_record(headers: Headers, value: Buffer | None) -> Outcome:
    """Read a reply or result record. Raises InferenceError(UNDECODABLE_RECORD)."""
    got = dict(headers)
    try:
        created, started, finished = got["tidegate-times-ms"].split(b",")
        length = got.get(HEADER_LENGTH)
        return Outcome(
            got["ce_id"].decode(),
            _STATE_BY_WIRE[got["tidegate-state"]],
            Origin.parse(got["tidegate-origin"].decode()),
            b"" if value is None else value,
            None if length is None else int(length),
            int(created),
            int(started),
            int(finished),
            got.get("traceparent", b"").decode(),
            got.get("tidegate-claim", b"").decode(),
            got.get(TENANT_HEADER, b"").decode(),
            got.get(WEBHOOK_HEADER, b"").decode(),
            int(got.get(ATTEMPT_HEADER, b"1")),
        )
    except (KeyError, ValueError, AttributeError) as cause:
        raise InferenceError(
            ErrorCode.UNDECODABLE_RECORD, f"an answer's headers cannot be read: {cause!r}", field="headers"
        ) from cause


def encode_stored(outcome: Outcome) -> bytes:
    """The stored object: magic, length of its head (uint32, little-endian), head as JSON, value."""
    head = msgspec.json.encode(
        _StoredHead(
            outcome.id,
            outcome.state,
            outcome.origin,
            outcome.header_length,
            outcome.created_ms,
            outcome.started_ms,
            outcome.finished_ms,
            outcome.traceparent,
            outcome.tenant,
            outcome.webhook,
            outcome.claim,
            outcome.attempt,
        )
    )
    return b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, outcome.value))


def decode_stored(data: Buffer) -> Outcome:
    """Inverse of `encode_stored`; the value is a view of `data`. Raises InferenceError(INTERNAL) for anything else."""
    view = memoryview(data)
    try:
        if view[:4] != _MAGIC:
            raise ValueError("it does not begin as one")
        end = 8 + int.from_bytes(view[4:8], "little")
        head = _head_decoder.decode(view[8:end])
    except (ValueError, msgspec.DecodeError) as cause:
        raise InferenceError(ErrorCode.INTERNAL, f"the stored object is no outcome: {cause}") from cause
    return Outcome(
        head.id,
        head.state,
        head.origin,
        view[end:],
        head.header_length,
        head.created_ms,
        head.started_ms,
        head.finished_ms,
        head.traceparent,
        head.claim,
        head.tenant,
        head.webhook,
        head.attempt,
    )


_STATE_HEADER = {state: ("tidegate-state", state.value.encode()) for state in JobState}
_STATE_BY_WIRE = {state.value.encode(): state for state in JobState}
