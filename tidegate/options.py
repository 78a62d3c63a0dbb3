"""Options: how a caller wants a request run, and how that is said on the wire. Knows no HTTP library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict
from urllib.parse import quote


class RequestOptions(TypedDict, total=False):
    """What may be said of a request, all by keyword.

    version: of the model; without it the highest that is served.
    outputs: names of the outputs to return; without it all.
    id: the caller's own name for the request, given back in the result.
    priority: 1 is the highest level, 0 the model's default.
    start_within_s: until it must have begun to run; else it expires.
    deadline_s: until its answer is of use; else it expires.
    execution_timeout_s: how long it may run once it has begun.
    parameters: further parameters of the protocol, passed to the model.
    traceparent: W3C trace context to go on with.
    request_id: a name for the gateway's log and answer, up to 128 visible ASCII characters.
    """

    version: str
    outputs: Sequence[str]
    id: str
    priority: int
    start_within_s: float
    deadline_s: float
    execution_timeout_s: float
    parameters: Mapping[str, Any]
    traceparent: str
    request_id: str


class SubmitOptions(RequestOptions, total=False):
    """What may be said of a job beside that.

    idempotency_key: the same key with the same request is the same job, for 24 hours; without it each call makes its
    own, so that its repetitions after a failure in passing are one job.
    webhook: a URL that is told when the job has ended.
    """

    idempotency_key: str
    webhook: str


def infer_path(model: str, options: RequestOptions) -> str:
    """Where requests for a model go."""
    version = options.get("version", "")
    return f"/v2/models/{_segment(model)}{f'/versions/{_segment(version)}' if version else ''}/infer"


def model_path(model: str, version: str = "") -> str:
    """Where a model's metadata is."""
    return f"/v2/models/{_segment(model)}{f'/versions/{_segment(version)}' if version else ''}"


def jobs_path(model: str) -> str:
    """Where jobs for a model are submitted together."""
    return f"/v1/models/{_segment(model)}/jobs"


def job_path(job_id: str) -> str:
    """Where a job is."""
    return f"/v1/jobs/{_segment(job_id)}"


def parameters_of(options: RequestOptions) -> dict[str, Any]:
    """The request's parameters. Raises ValueError for negative times."""
    parameters = dict(options.get("parameters") or {})
    if options.get("priority"):
        parameters["priority"] = options["priority"]
    for option, name, per_second in (
        ("start_within_s", "timeout", 1_000_000),
        ("deadline_s", "deadline_ms", 1000),
        ("execution_timeout_s", "execution_timeout_ms", 1000),
    ):
        seconds: Any = options.get(option)
        if seconds is None:
            continue
        if not seconds > 0:
            raise ValueError(f"{option} is {seconds!r}: give seconds above 0, or leave it out")
        parameters[name] = max(1, round(seconds * per_second))
    return parameters


def headers_of(options: SubmitOptions | RequestOptions) -> dict[str, str]:
    """The request's headers beside those of its body."""
    headers = {}
    for option, name in (
        ("traceparent", "traceparent"),
        ("request_id", "x-request-id"),
        ("idempotency_key", "idempotency-key"),
        ("webhook", "tidegate-webhook"),
    ):
        value: Any = options.get(option)
        if value:
            headers[name] = str(value)
    return headers


def _segment(text: str) -> str:
    """A name as one segment of a path. Raises ValueError for those that no path can hold."""
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} is no name")
    return quote(text, safe="")
