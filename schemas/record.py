"""The request record: a request and its envelope as value and headers of a Kafka record.

Headers follow the CloudEvents Kafka binding in binary mode and W3C trace context, plus a few of our own that all
begin with `tidegate-`. A record without headers is served too: its id is its place in the topic and its answer goes
to the results topic. Knows no Kafka client: headers are (name, bytes) pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.request import InferenceRequest
from schemas.tensor import Buffer
from schemas.v2 import HEADER_LENGTH, decode_request, encode_request

Headers = Sequence[tuple[str, bytes]]

DEADLINE_HEADER = "tidegate-deadline-ms"
START_BY_HEADER = "tidegate-start-by-ms"
EXECUTION_TIMEOUT_HEADER = "tidegate-execution-timeout-ms"
VERSION_HEADER = "tidegate-model-version"
TENANT_HEADER = "tidegate-tenant"
WEBHOOK_HEADER = "tidegate-webhook"
ATTEMPT_HEADER = "tidegate-attempt"
REQUEST_TYPE = b"tidegate.inference.request.v1"
SPEC_VERSION = ("ce_specversion", b"1.0")
JSON_CONTENT = ("content-type", b"application/json")
BINARY_CONTENT = ("content-type", b"application/octet-stream")
_TYPE = ("ce_type", REQUEST_TYPE)
_MAX_TEXT_CHARS = 4096  # what is given back with the answer must leave room for it in a record
_MAX_DIGITS = 18  # of an int64; arithmetic with what a caller wrote must not overflow anywhere


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The place of a request in its topic; with the topic's epoch it is the request's identity."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Inverse of str(). Raises ValueError."""
        topic, partition, offset = text.rsplit("/", 2)
        return cls(topic, int(partition), int(offset))


class ReplyTo(msgspec.Struct, frozen=True, gc=False):
    """Where the caller waits for the answer: one partition of the replies topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> ReplyTo:
        """Inverse of str(). Raises ValueError."""
        topic, partition = text.rsplit("/", 1)
        return cls(topic, int(partition))


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What a request carries beside its tensors.

    `id` is the CloudEvents id, unique per source. Without `reply_to` the answer goes to the results topic and the
    object store. `attempt` counts runs that failed, not interruptions. `claim` is the object key of a value that
    was too large for a record. `stored` asks for the outcome in the object store, as asynchronous jobs do.

    Three clocks: `deadline` is when the answer is of no use any more, `start_by` when the request must have begun to
    run, `execution_timeout_ms` how long it may run, 0 for as long as its model allows. `tenant` is who sent it, empty
    where there are no tenants. `webhook` is a URL that wants to hear of the outcome; both travel on with the outcome.
    """

    id: str
    source: str = ""
    reply_to: ReplyTo | None = None
    deadline: Deadline | None = None
    model_version: str = ""
    priority: int = 0
    attempt: int = 1
    traceparent: str = ""
    claim: str = ""
    stored: bool = False
    start_by: Deadline | None = None
    execution_timeout_ms: int = 0
    tenant: str = ""
    webhook: str = ""

    @property
    def begin_by(self) -> Deadline | None:
        """The moment from which the request must not begin to run."""
        if self.start_by is None or self.deadline is None:
            return self.start_by or self.deadline
        return min(self.start_by, self.deadline)


@lru_cache(maxsize=64)  # the records of one batch or one moment share it
def rfc3339(time_ms: int) -> str:
    """A moment in milliseconds since the epoch as CloudEvents wants it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def encode_request_record(
    request: InferenceRequest, envelope: Envelope, *, now_ms: int
) -> tuple[bytes, list[tuple[str, bytes]]]:
    """The value and headers of a request's record; all tensors are raw in the value."""
    value, header_length = encode_request(request)
    return value, request_headers(envelope, header_length, now_ms=now_ms)


def request_headers(envelope: Envelope, header_length: int, *, now_ms: int) -> list[tuple[str, bytes]]:
    """The headers of a request's record. aiokafka wants a list."""
    headers = [
        SPEC_VERSION,
        _TYPE,
        ("ce_id", envelope.id.encode()),
        ("ce_source", envelope.source.encode()),
        ("ce_time", rfc3339(now_ms).encode()),
        BINARY_CONTENT,
        (HEADER_LENGTH, b"%d" % header_length),
    ]
    if envelope.reply_to is not None:
        headers.append(("tidegate-reply-to", str(envelope.reply_to).encode()))
    if envelope.deadline is not None:
        headers.append((DEADLINE_HEADER, b"%d" % envelope.deadline.at_ms))
    if envelope.model_version:
        headers.append((VERSION_HEADER, envelope.model_version.encode()))
    if envelope.priority:
        headers.append(("tidegate-priority", b"%d" % envelope.priority))
    if envelope.attempt != 1:
        headers.append((ATTEMPT_HEADER, b"%d" % envelope.attempt))
    if envelope.traceparent:
        headers.append(("traceparent", envelope.traceparent.encode()))
    if envelope.claim:
        headers.append(("tidegate-claim", envelope.claim.encode()))
    if envelope.stored:
        headers.append(("tidegate-stored", b"1"))
    if envelope.start_by is not None or envelope.execution_timeout_ms or envelope.tenant or envelope.webhook:
        headers.extend(_rare_headers(envelope))
    return headers


def _rare_headers(envelope: Envelope) -> Iterator[tuple[str, bytes]]:
    if envelope.start_by is not None:
        yield START_BY_HEADER, b"%d" % envelope.start_by.at_ms
    if envelope.execution_timeout_ms:
        yield EXECUTION_TIMEOUT_HEADER, b"%d" % envelope.execution_timeout_ms
    if envelope.tenant:
        yield TENANT_HEADER, envelope.tenant.encode()
    if envelope.webhook:
        yield WEBHOOK_HEADER, envelope.webhook.encode()


def decode_envelope(headers: Headers, origin: Origin) -> tuple[Envelope, int | None]:
    """The envelope of a record and the length of its JSON part (None: all JSON).

    Raises InferenceError(UNDECODABLE_RECORD) naming the header.
    """
    got = dict(headers)
    name = ""
    try:
        name = "ce_id"
        id_ = got["ce_id"].decode() if "ce_id" in got else str(origin)
        name = HEADER_LENGTH
        header_length = _number(got[name]) if name in got else None
        name = "tidegate-reply-to"
        reply_to = ReplyTo.parse(got[name].decode()) if name in got else None
        name = DEADLINE_HEADER
        deadline = Deadline(_number(got[name])) if name in got else None
        name = START_BY_HEADER
        start_by = Deadline(_number(got[name])) if name in got else None
        name = EXECUTION_TIMEOUT_HEADER
        execution_timeout_ms = _number(got[name]) if name in got else 0
        name = "tidegate-priority"
        priority = _number(got[name]) if name in got else 0
        name = ATTEMPT_HEADER
        attempt = _number(got[name]) if name in got else 1
        name = "ce_id, traceparent or another text header"
        envelope = Envelope(
            id_,
            got.get("ce_source", b"").decode(),
            reply_to,
            deadline,
            got.get(VERSION_HEADER, b"").decode(),
            priority,
            attempt,
            got.get("traceparent", b"").decode(),
            got.get("tidegate-claim", b"").decode(),
            "tidegate-stored" in got,
            start_by,
            execution_timeout_ms,
            got.get(TENANT_HEADER, b"").decode(),
            got.get(WEBHOOK_HEADER, b"").decode(),
        )
        if max(len(id_), len(envelope.traceparent), len(envelope.tenant), len(envelope.webhook)) > _MAX_TEXT_CHARS:
            raise ValueError(f"it is longer than {_MAX_TEXT_CHARS} characters")
    except (ValueError, AttributeError, TypeError) as cause:
        raise _unreadable(name, got.get(name, b""), origin, cause) from cause
    return envelope, header_length


def _unreadable(name: str, value: bytes, origin: Origin, cause: Exception) -> InferenceError:
    return InferenceError(
        ErrorCode.UNDECODABLE_RECORD,
        f"header {name!r} of the record at {origin} cannot be read: {cause}",
        field=name,
        value=value,
        remedy="leave the header out, or write it as the documentation of records says",
    )


def _number(text: bytes) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"it has more than {_MAX_DIGITS} digits")
    return int(text)


def decode_value(value: Buffer | None, header_length: int | None, origin: Origin) -> InferenceRequest:
    """The request in a record's value; tensors are views of it. Raises InferenceError(UNDECODABLE_RECORD)."""
    try:
        return decode_request(b"" if value is None else value, header_length)
    except InferenceError as cause:
        raise InferenceError(
            ErrorCode.UNDECODABLE_RECORD,
            f"the record at {origin} is no request: {cause.message}",
            field=cause.field,
            value=cause.value,
            remedy=cause.remedy,
        ) from cause
