"""Errors: what a gateway's problem documents become for a caller in Python. Knows no HTTP client and no server code.

Codes are the server's; one that this client does not know yet is a plain TidegateError that still tells everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class TidegateError(Exception):
    """A request failed, and the gateway said why.

    `code` is the kind of failure, `status` the HTTP status (0: none came). `retryable`: the same request may succeed
    later, after `retry_after_s` where that is known. For bad input `field` and `value` say what was wrong with which
    part, and `remedy` what to do. `request_id` finds the request in the gateway's log, `type` leads to a page about it.
    """

    def __init__(self, code: str, message: str, *, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        told = problem or {}
        self.code = code
        self.message = message
        self.status = status
        self.retryable = told.get("retryable") is True
        self.field = _text(told, "field")
        self.value = _text(told, "value")
        self.remedy = _text(told, "remedy")
        self.request_id = _text(told, "request_id")
        self.type = _text(told, "type")
        self.retry_after_s: float | None = None
        super().__init__(message)

    def __str__(self) -> str:
        """The message with field, value and remedy, as far as they were told."""
        parts = [f"{self.code}: {self.message}"]
        if self.field:
            parts.append(f"[{self.field}={self.value}]" if self.value else f"[{self.field}]")
        if self.remedy:
            parts.append(f"- {self.remedy}")
        return " ".join(parts)


class InvalidRequestError(TidegateError):
    """The input does not fit the model or the protocol; sending it again changes nothing."""


class UnauthenticatedError(TidegateError):
    """No valid key or token was sent."""


class PermissionDeniedError(TidegateError):
    """The key or token does not allow this."""


class NotFoundError(TidegateError):
    """No such model, version or job, or none that this caller may see."""


class ConflictError(TidegateError):
    """It does not go with what is there: another body under the same idempotency key, or a job that has ended."""


class ResultExpiredError(TidegateError):
    """The job has ended and its result is not kept any more."""


class OverloadedError(TidegateError):
    """More is waiting than may wait; come again after `retry_after_s`."""


class UnavailableError(TidegateError):
    """The gateway, its Kafka or the model cannot take the request now; come again later."""


class DeadlineExceededError(TidegateError):
    """The request's own deadline or execution timeout passed."""


class JobCancelledError(TidegateError):
    """The job was cancelled."""


class ModelFailedError(TidegateError):
    """The model itself failed at this input."""


class ServerError(TidegateError):
    """A fault inside the gateway or a worker; its log says more under `request_id`."""


class NoAnswerError(TidegateError):
    """The gateway could not be reached, or the connection broke before it answered."""


class UnreadableAnswerError(TidegateError):
    """What came back is no answer of a tidegate gateway."""


class WaitTimeoutError(TidegateError, TimeoutError):
    """The time that the caller wanted to wait is over; the job goes on, under `job_id`."""

    def __init__(self, job_id: str, timeout_s: float) -> None:
        super().__init__("wait_timeout", f"job {job_id} has not ended within {timeout_s:g} s; it goes on")
        self.job_id = job_id
        self.timeout_s = timeout_s


_KINDS: dict[str, type[TidegateError]] = {
    "invalid_request": InvalidRequestError,
    "undecodable_record": InvalidRequestError,
    "not_acceptable": InvalidRequestError,
    "payload_too_large": InvalidRequestError,
    "headers_too_large": InvalidRequestError,
    "unsupported_media_type": InvalidRequestError,
    "unsupported": InvalidRequestError,
    "unauthenticated": UnauthenticatedError,
    "permission_denied": PermissionDeniedError,
    "model_not_found": NotFoundError,
    "job_not_found": NotFoundError,
    "not_found": NotFoundError,
    "conflict": ConflictError,
    "idempotency_mismatch": ConflictError,
    "result_expired": ResultExpiredError,
    "overloaded": OverloadedError,
    "request_timeout": UnavailableError,
    "unavailable": UnavailableError,
    "model_load_failed": UnavailableError,
    "deadline_exceeded": DeadlineExceededError,
    "execution_timeout": DeadlineExceededError,
    "cancelled": JobCancelledError,
    "model_failed": ModelFailedError,
    "internal": ServerError,
}


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> TidegateError:
    """The error in an answer that is no success. `headers` have lower-case names. Never raises."""
    problem: Any
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str):  # of a proxy in between, as a rule
        shown = body[:200].decode("utf-8", "replace")
        problem = {"code": f"http_{status}", "detail": f"HTTP {status}: {shown}", "retryable": status in (429, 503)}
    error = error_of_problem(problem, status)
    error.retry_after_s = _seconds(headers.get("retry-after"))
    return error


def error_of_problem(problem: Mapping[str, Any], status: int = 0) -> TidegateError:
    """The error that a problem document describes, as in a job that has failed."""
    code = _text(problem, "code") or "internal"
    told_status = problem.get("status")
    status = status or (told_status if isinstance(told_status, int) else 0)
    kind = _KINDS.get(code, TidegateError)
    return kind(code, _text(problem, "detail") or _text(problem, "title") or code, status=status, problem=problem)


def _text(problem: Mapping[str, Any], name: str) -> str:
    value = problem.get(name)
    return value if isinstance(value, str) else ""


def _seconds(text: str | None) -> float | None:
    try:
        seconds = float(text) if text else None
    except ValueError:  # a date; nobody of ours sends one
        return None
    return seconds if seconds is not None and 0 <= seconds < 1e9 else None
