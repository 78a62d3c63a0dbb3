"""Problem: errors as HTTP callers read them, RFC 9457 problem documents. The one place where a code becomes a status.

Knows no route and no Kafka.
"""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec

from schemas.errors import ErrorCode, InferenceError

RawHeaders = list[tuple[bytes, bytes]]

_CONTENT_TYPE = (b"content-type", b"application/problem+json")
# How one proves who one is (RFC 6750); a 401 must say so.
_CHALLENGE = (b"www-authenticate", b'Bearer realm="tidegate"')
# When to come again, where the error does not tell. Others of a retryable kind carry no time: nobody knows one.
_RETRY_AFTER_S = {
    ErrorCode.REQUEST_TIMEOUT: 1,
    ErrorCode.OVERLOADED: 1,
    ErrorCode.UNAVAILABLE: 1,
    ErrorCode.MODEL_LOAD_FAILED: 5,
}


class Problem(msgspec.Struct, frozen=True):
    """The document. `error` repeats `detail` where clients of the Open Inference Protocol look for it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    error: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    value: str | msgspec.UnsetType = msgspec.UNSET
    remedy: str | msgspec.UnsetType = msgspec.UNSET
    request_id: str | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode


def error_type(code: str) -> str:
    """What identifies a kind of error, and leads to its page (gateway/error_pages.py): relative to the gateway, for
    that does not know under which name callers reach it. Machines had better look at `code`.
    """
    return f"/errors/{code}"


def problem_of(error: InferenceError, *, request_id: str = "") -> Problem:
    """The document of an error; fields that say nothing are left out."""
    code = error.code
    return Problem(
        error_type(code.wire),
        code.wire.replace("_", " "),
        code.http_status,
        error.message,
        code.wire,
        code.retryable,
        error.message,
        error.field or msgspec.UNSET,
        error.value or msgspec.UNSET,
        error.remedy or msgspec.UNSET,
        request_id or msgspec.UNSET,
    )


def retry_after(error: InferenceError) -> int | None:
    """In how many seconds to come again, a whole number and at least 1; None: nobody knows, or it is of no use."""
    if error.retry_after_s is not None:
        return max(1, math.ceil(error.retry_after_s))
    return _RETRY_AFTER_S.get(error.code)


def problem_response(error: InferenceError, *, request_id: str = "") -> tuple[int, RawHeaders, bytes]:
    """(status, headers without content-length, body) that answer with `error`."""
    headers: RawHeaders = [_CONTENT_TYPE]
    if (seconds := retry_after(error)) is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if error.code is ErrorCode.UNAUTHENTICATED:
        headers.append(_CHALLENGE)
    return error.code.http_status, headers, _encode(problem_of(error, request_id=request_id))


def routing_problem(status: int, *, request_id: str = "") -> tuple[RawHeaders, bytes]:
    """(headers, body) for what never reached a route: an unknown path, a wrong method."""
    phrase = HTTPStatus(status).phrase
    code = phrase.lower().replace(" ", "_")
    problem = Problem(error_type(code), phrase, status, phrase, code, False, phrase)
    return [_CONTENT_TYPE], _encode(msgspec.structs.replace(problem, request_id=request_id or msgspec.UNSET))
