"""Errors: one table of codes with what each means to a caller. Knows no transport; the edges only look codes up.

Every failure that reaches a caller, a dead letter or a job's outcome is an `InferenceError` with one of these codes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class ErrorCode(Enum):
    """A kind of failure: (wire name, retryable as it is, HTTP status, gRPC status name)."""

    INVALID_REQUEST = ("invalid_request", False, 400, "INVALID_ARGUMENT")
    UNDECODABLE_RECORD = ("undecodable_record", False, 400, "INVALID_ARGUMENT")
    UNAUTHENTICATED = ("unauthenticated", False, 401, "UNAUTHENTICATED")
    PERMISSION_DENIED = ("permission_denied", False, 403, "PERMISSION_DENIED")
    MODEL_NOT_FOUND = ("model_not_found", False, 404, "NOT_FOUND")
    JOB_NOT_FOUND = ("job_not_found", False, 404, "NOT_FOUND")
    NOT_ACCEPTABLE = ("not_acceptable", False, 406, "INVALID_ARGUMENT")
    REQUEST_TIMEOUT = ("request_timeout", True, 408, "DEADLINE_EXCEEDED")
    CONFLICT = ("conflict", False, 409, "FAILED_PRECONDITION")
    RESULT_EXPIRED = ("result_expired", False, 410, "NOT_FOUND")
    PAYLOAD_TOO_LARGE = ("payload_too_large", False, 413, "RESOURCE_EXHAUSTED")
    UNSUPPORTED_MEDIA_TYPE = ("unsupported_media_type", False, 415, "INVALID_ARGUMENT")
    IDEMPOTENCY_MISMATCH = ("idempotency_mismatch", False, 422, "ALREADY_EXISTS")
    OVERLOADED = ("overloaded", True, 429, "RESOURCE_EXHAUSTED")
    HEADERS_TOO_LARGE = ("headers_too_large", False, 431, "RESOURCE_EXHAUSTED")
    CANCELLED = ("cancelled", False, 499, "CANCELLED")
    MODEL_FAILED = ("model_failed", False, 500, "INTERNAL")
    INTERNAL = ("internal", False, 500, "INTERNAL")
    UNSUPPORTED = ("unsupported", False, 501, "UNIMPLEMENTED")
    MODEL_LOAD_FAILED = ("model_load_failed", True, 503, "UNAVAILABLE")
    UNAVAILABLE = ("unavailable", True, 503, "UNAVAILABLE")
    DEADLINE_EXCEEDED = ("deadline_exceeded", False, 504, "DEADLINE_EXCEEDED")
    EXECUTION_TIMEOUT = ("execution_timeout", False, 504, "DEADLINE_EXCEEDED")

    def __init__(self, wire: str, retryable: bool, http_status: int, grpc_status: str) -> None:
        self.wire = wire
        self.retryable = retryable
        self.http_status = http_status
        self.grpc_status = grpc_status

    @classmethod
    def from_wire(cls, wire: str) -> ErrorCode:
        """Look a wire name up; a name of a newer version reads as INTERNAL, never as another exception."""
        return _BY_WIRE.get(wire, cls.INTERNAL)


_MESSAGE_CHARS = 2000
_BY_WIRE = {code.wire: code for code in ErrorCode}


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it travels in records, outcomes and dead letters. `code` is an `ErrorCode.wire`."""

    code: str
    message: str
    field: str = ""
    value: str = ""
    remedy: str = ""


class InferenceError(Exception):
    """A failure with a code of the table, and for bad input the field, its value and the remedy.

    `retry_after_s`: when to come again, in seconds, where somebody knows; it is for the caller, and does not travel in
    records.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str = "",
        value: Any = "",
        remedy: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        # Each may quote the caller's input; an answer or a dead letter must hold all of them beside it.
        self.message = _shorten(message, _MESSAGE_CHARS)
        super().__init__(self.message)
        self.code = code
        self.field = _shorten(field)
        self.value = _shorten(value)
        self.remedy = _shorten(remedy, _MESSAGE_CHARS)
        self.retry_after_s = retry_after_s

    def detail(self) -> ErrorDetail:
        """The form that travels."""
        return ErrorDetail(
            code=self.code.wire, message=self.message, field=self.field, value=self.value, remedy=self.remedy
        )

    @classmethod
    def from_detail(cls, detail: ErrorDetail) -> InferenceError:
        """Rebuild the error that a record or an outcome carried."""
        return cls(
            ErrorCode.from_wire(detail.code),
            detail.message,
            field=detail.field,
            value=detail.value,
            remedy=detail.remedy,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Exceptions with keyword-only arguments do not copy by default; this one does."""
        return (InferenceError.from_detail, (self.detail(),), {"retry_after_s": self.retry_after_s})


def invalid(message: str, *, field: str, value: Any = "", remedy: str = "") -> InferenceError:
    """The most common error: the caller's input, with the field, the value and the remedy."""
    return InferenceError(ErrorCode.INVALID_REQUEST, message, field=field, value=value, remedy=remedy)


def shown(value: object) -> str:
    """`repr` of what others made, whose own may fail."""
    try:
        return repr(value)
    except Exception:  # it is being told of: that it cannot tell of itself changes nothing
        return f"<{type(value).__name__} that cannot be shown>"


def _shorten(value: Any, limit_chars: int = 120) -> str:
    text = value if isinstance(value, str) else shown(value)
    text = text if len(text) <= limit_chars else text[: limit_chars - 1] + "…"
    # Half a surrogate, as in a file name that is no UTF-8, can be in a str and in no record.
    return text if text.isascii() else text.encode(errors="replace").decode()
