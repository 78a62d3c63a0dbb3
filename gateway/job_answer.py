"""JobAnswer: job documents as HTTP responses. Knows no store, no Kafka and not where documents come from."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.problem import Problem, problem_of
from gateway.standing import JobDocument
from schemas.errors import ErrorCode, InferenceError

_encode = msgspec.json.Encoder().encode
JSON = "application/json"


class FinishedProblem(Problem, frozen=True, kw_only=True):
    """The problem of an operation that comes too late: `job` tells how it has ended."""

    job: JobDocument


def json_response(document: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A document, as it is."""
    return Response(_encode(document), status, headers, JSON)


def tagged_response(request: Request, body: bytes, headers: dict[str, str], media_type: str) -> Response:
    """A body with its ETag, or 304 when the caller has it already."""
    tag = f'"{hashlib.blake2b(body, digest_size=12, key=media_type.encode()).hexdigest()}"'
    return with_tag(request, tag) or Response(body, 200, {**headers, "etag": tag, "vary": "accept"}, media_type)


def with_tag(request: Request, tag: str) -> Response | None:
    """304 when the caller has what this ETag names, else None."""
    known = request.headers.get("if-none-match", "")
    if not known:
        return None
    tags = {each.strip().removeprefix("W/") for each in known.split(",")}
    return Response(None, 304, {"etag": tag, "vary": "accept"}) if tag in tags or "*" in tags else None


def document_response(request: Request, document: JobDocument, headers: dict[str, str] | None = None) -> Response:
    """A job's document."""
    return tagged_response(request, _encode(document), headers or {}, JSON)


def too_late(document: JobDocument) -> Response:
    """409: the job has ended already, and how."""
    error = InferenceError(
        ErrorCode.CONFLICT,
        f"the job has {document.state} already, there is nothing to cancel",
        field="state",
        value=document.state,
        remedy="fetch its result",
    )
    fields = {name: getattr(problem_of(error), name) for name in Problem.__struct_fields__}
    return Response(_encode(FinishedProblem(**fields, job=document)), 409, None, "application/problem+json")
