"""The parameters, headers and security schemes that operations of the OpenAPI document share. Knows no route."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_STRING = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 0}
_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
# In the path: name -> (description, example). A segment of a path is never empty and holds no slash.
_IN_PATH = {
    "model": ("The model's name.", "digits"),
    "version": ("The model's version.", "1"),
    "repository": ("Any name; there is one repository.", "models"),
    "pool": ("The pool's name.", "default"),
    "id": ("The job's id, from the answer 202.", "AUr6ai4Nrd7LOfYArMyQ"),
    "code": ("An error's code.", "overloaded"),
    "name": ("The output's name.", "scores"),
}
# In the query: name -> (description, schema, example).
_IN_QUERY: dict[str, tuple[str, dict[str, Any], Any]] = {
    "wait": ("Seconds to wait for the job's end before answering; more than the gateway waits is cut.", _WHOLE, 30),
    "wait_for": ("What to wait for.", {"type": "string", "enum": ["started", "finished"]}, "finished"),
}
# In the head of the request: name -> (description, schema, example).
_IN_HEAD: dict[str, tuple[str, dict[str, Any], Any]] = {
    "prefer": (
        "RFC 7240. `respond-async`: answer with a job at once. `wait=N`: wait N seconds at most, then with a job.",
        _STRING,
        "respond-async",
    ),
    "idempotency-key": (
        "Any text that names this submission: for 24 hours the same key with the same request is the same job, with "
        "another request it is refused with 422.",
        {"type": "string", "maxLength": 255},
        "order-4711",
    ),
    "inference-header-content-length": (
        "Bytes of the body's JSON part, when raw tensors follow it; 0 when the whole body is one raw tensor.",
        _WHOLE,
        228,
    ),
    "content-encoding": (
        "How the body is compressed.",
        {"type": "string", "enum": ["gzip", "deflate", "identity"]},
        "gzip",
    ),
    "accept-encoding": ("How the answer may be compressed.", _STRING, "gzip"),
    "accept": (
        "In which form the result is wanted: `application/octet-stream` for raw tensors.",
        _STRING,
        "application/octet-stream",
    ),
    "if-none-match": ("ETags of what you have; the answer is 304 if it is still that.", _STRING, '"3f2a9c1d"'),
    "traceparent": ("W3C trace context to go on with; it is given back.", _STRING, _TRACE),
    "x-request-id": (
        "Your name for this request, up to 128 visible ASCII characters; it is given back and logged.",
        _STRING,
        "checkout-4711",
    ),
    "tidegate-timeout-ms": ("Milliseconds until the request must have begun to run.", _WHOLE, 500),
    "tidegate-deadline-ms": ("Milliseconds until its answer is of use.", _WHOLE, 2000),
    "tidegate-execution-timeout-ms": ("Milliseconds that it may run.", _WHOLE, 1000),
    "tidegate-priority": ("1 is the highest level, 0 the model's default.", _WHOLE, 1),
    "tidegate-webhook": (
        "A URL that is told of the job's end, signed as Standard Webhooks are. With `Prefer: respond-async` only.",
        {"type": "string", "format": "uri"},
        "https://example.com/hooks/tidegate",
    ),
    "last-event-id": ("The id of the last event that arrived, to go on after it.", _STRING, "3"),
}
_ANSWER_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "x-request-id": ("The request's name in the gateway's log.", _STRING),
    "traceparent": ("W3C trace context of this request.", _STRING),
    "Location": ("Where the job is.", _STRING),
    "ETag": ("What the answer is told apart by: it changes when the answer does.", _STRING),
    "Retry-After": ("Seconds until to come again.", _WHOLE),
    "Preference-Applied": ("What of Prefer was done.", _STRING),
    "Inference-Header-Content-Length": ("Bytes of the body's JSON part, when raw tensors follow it.", _WHOLE),
    "Content-Encoding": ("How the body is compressed.", _STRING),
}


def component_parameters(paths: Iterable[str]) -> dict[str, Any]:
    """All of them by name; one of a path that has no description here is told as text."""
    named = {part[1:-1] for path in paths for part in path.split("/") if part.startswith("{")}
    parameters = {}
    for name in sorted(named):
        description, example = _IN_PATH.get(name, ("", "one"))
        schema = {"type": "string", "minLength": 1}
        parameters[name] = _parameter(name, "path", description, schema, example, required=True)
    for name, (description, schema, example) in _IN_QUERY.items():
        parameters[name] = _parameter(name, "query", description, schema, example)
    for name, (description, schema, example) in _IN_HEAD.items():
        parameters[name] = _parameter(name, "header", description, schema, example)
    return parameters


def component_headers() -> dict[str, Any]:
    """The headers of answers by name."""
    return {
        name: {"description": description, "schema": schema} for name, (description, schema) in _ANSWER_HEADERS.items()
    }


def security_schemes() -> dict[str, Any]:
    """The ways to prove who one is, where the gateway asks."""
    return {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key or a JSON web token, where the gateway is set up to ask for one.",
        },
        "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same API key."},
    }


def _parameter(
    name: str, place: str, description: str, schema: dict[str, Any], example: Any, *, required: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "description": description,
        "required": required,
        "schema": schema,
        "example": example,
    }
