"""What the OpenAPI document says of jobs and their webhooks. Knows no logic."""

from __future__ import annotations

from typing import Any

from gateway.openapi_inference import QUEUED, REQUEST, RESULT
from gateway.openapi_operation import JSON, PROBLEM, Answer, Content, Operation
from schemas.errors import ErrorCode

_CREATED = {**QUEUED, "created_at": "2026-11-30T12:00:00.000+00:00"}
_RUNNING = {**_CREATED, "state": "running"}
_WAITING = {**_CREATED, "position": 17, "reason": "model loading, 40% fetched"}
_CANCELLED = {**_CREATED, "state": "cancelled", "finished_at": "2026-11-30T12:00:01.400+00:00"}
_PROBLEM = {
    "type": "/errors/model_failed",
    "title": "model failed",
    "status": 500,
    "detail": "the model raised ValueError: negative age",
    "code": "model_failed",
    "retryable": False,
    "error": "the model raised ValueError: negative age",
    "request_id": "3f2a9c1d-1a",
}
_FAILED = {
    **_CREATED,
    "state": "failed",
    "started_at": "2026-11-30T12:00:01.250+00:00",
    "finished_at": "2026-11-30T12:00:01.400+00:00",
    "error": _PROBLEM,
}
_UNKNOWN = {
    "type": "/errors/job_not_found",
    "title": "job not found",
    "status": 404,
    "detail": "there is no such job",
    "code": "job_not_found",
    "retryable": False,
    "error": "there is no such job",
}
_LOOK_UP_CODES = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.JOB_NOT_FOUND,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.RESULT_EXPIRED,
    ErrorCode.UNAVAILABLE,
)
_ENDED_CODES = (
    ErrorCode.UNDECODABLE_RECORD,
    ErrorCode.NOT_ACCEPTABLE,
    ErrorCode.CANCELLED,
    ErrorCode.MODEL_FAILED,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.EXECUTION_TIMEOUT,
)
_BATCH_CODES = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.CANCELLED,
    ErrorCode.CONFLICT,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.IDEMPOTENCY_MISMATCH,
    ErrorCode.UNAVAILABLE,
)
_UNCHANGED = Answer("You have it already: its ETag is in If-None-Match.")
_MANY: dict[str, Any] = {
    "type": "object",
    "required": ["jobs"],
    "properties": {
        "jobs": {
            "type": "array",
            "items": {
                "anyOf": [{"$ref": "#/components/schemas/JobDocument"}, {"$ref": "#/components/schemas/Problem"}]
            },
        }
    },
}
_BATCH: dict[str, Any] = {
    "type": "object",
    "required": ["requests"],
    "properties": {
        "requests": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/InferenceRequest"}},
        "version": {"type": "string", "description": "Of the model, for all of them."},
    },
}
_IDS: dict[str, Any] = {
    "type": "object",
    "required": ["ids"],
    "properties": {"ids": {"type": "array", "minItems": 1, "items": {"type": "string"}}},
}
_WEBHOOK: dict[str, Any] = {
    "type": "object",
    "required": ["id", "state"],
    "properties": {
        "id": {"type": "string"},
        "state": {"type": "string", "enum": ["none", "pending", "delivered", "failed"]},
        "url": {"type": "string"},
        "attempts": {"type": "integer"},
        "redeliveries": {"type": "integer"},
        "last_status": {"type": "integer"},
        "last_error": {"type": "string"},
        "first_attempt_at": {"type": "string"},
        "last_attempt_at": {"type": "string"},
        "next_attempt_at": {"type": "string"},
        "delivered_at": {"type": "string"},
        "links": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
_PENDING = {"id": QUEUED["id"], "state": "pending", "url": "https://example.com/hooks/tidegate"}

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/jobs/{id}",
        id="getJob",
        tag="Jobs",
        summary="Where a job stands",
        description="Any gateway answers for any job. While it is queued, `position` counts the requests before it "
        "that are not done, and `reason` says what it waits for. The states succeeded, failed, expired and cancelled "
        "are final. With `wait` the answer comes when the job has ended, or when the wait is over.",
        scope="jobs",
        parameters=("wait", "wait_for", "if-none-match"),
        answers={
            200: Answer(
                "The job.",
                (Content("JobDocument", JSON, {"queued": _WAITING, "running": _RUNNING, "failed": _FAILED}),),
                ("ETag",),
            ),
            204: Answer("As events only: you have been told of its end."),
            304: _UNCHANGED,
        },
        codes=_LOOK_UP_CODES,
    ),
    Operation(
        method="DELETE",
        path="/v1/jobs/{id}",
        id="cancelJob",
        tag="Jobs",
        summary="Cancel a job",
        description="It is cancelled at once: if it is queued it never runs, if it runs its result is thrown away.",
        scope="jobs",
        answers={
            200: Answer("It is cancelled.", (Content("JobDocument", JSON, {"cancelled": _CANCELLED}),)),
            409: Answer(
                "It has ended before; `job` says how.",
                (Content("Problem", PROBLEM, {"too late": {**_UNKNOWN, "code": "conflict", "job": _FAILED}}),),
            ),
        },
        codes=_LOOK_UP_CODES,
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/events",
        id="getJobEvents",
        tag="Jobs",
        summary="A job's life as server-sent events",
        description="`position` as it falls, `started`, `finished`; each event's data is the job's document. The "
        "stream ends with the job. `Last-Event-ID` goes on after an event.",
        scope="jobs",
        parameters=("last-event-id",),
        answers={
            200: Answer("The events.", (Content({"type": "string"}, "text/event-stream"),)),
            204: Answer("You have been told of its end."),
        },
        codes=_LOOK_UP_CODES,
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/result",
        id="getJobResult",
        tag="Jobs",
        summary="A job's result",
        description="What the synchronous call would have answered: the result, or the error that the job ended with. "
        "Raw tensors for `Accept: application/octet-stream`. A large one may be answered with 303 and a URL of the "
        "object store; there the length of the JSON part is a parameter of the content type.",
        scope="jobs",
        parameters=("accept", "wait", "if-none-match"),
        answers={
            200: Answer("The result.", RESULT, ("Inference-Header-Content-Length", "ETag")),
            202: Answer("There is none yet.", (Content("JobDocument", JSON, {"queued": _WAITING}),), ("Retry-After",)),
            303: Answer("It is at `Location`.", (), ("Location", "Inference-Header-Content-Length")),
            304: _UNCHANGED,
        },
        codes=(*_LOOK_UP_CODES, *_ENDED_CODES),
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/result/outputs/{name}",
        id="getJobOutput",
        tag="Jobs",
        summary="One output of a job's result, as its bytes",
        description="A single BYTES element comes without its length before it: an image is an image. "
        "`tidegate-datatype` and `tidegate-shape` say what it is.",
        scope="jobs",
        parameters=("accept", "wait", "if-none-match"),
        answers={
            200: Answer("The bytes.", (Content({"type": "string"}, "application/octet-stream"),)),
            202: Answer("There is none yet.", (Content("JobDocument", JSON, {"queued": _WAITING}),), ("Retry-After",)),
            304: _UNCHANGED,
        },
        codes=(*_LOOK_UP_CODES, *_ENDED_CODES),
    ),
    Operation(
        method="POST",
        path="/v1/jobs/status",
        id="getJobs",
        tag="Jobs",
        summary="Where many jobs stand",
        description="In the order of the ids. With `wait` the answer comes when one of them has ended.",
        scope="jobs",
        parameters=("wait",),
        body=(Content(_IDS, JSON, {"two": {"ids": [QUEUED["id"], "AUr6ai4N"]}}),),
        answers={
            200: Answer("Each job, or what is wrong.", (Content(_MANY, JSON, {"two": {"jobs": [_WAITING, _UNKNOWN]}}),))
        },
        codes=(*_LOOK_UP_CODES, ErrorCode.PAYLOAD_TOO_LARGE, ErrorCode.UNSUPPORTED_MEDIA_TYPE, ErrorCode.CANCELLED),
    ),
    Operation(
        method="POST",
        path="/v1/models/{model}/jobs",
        id="submitJobs",
        tag="Jobs",
        summary="Submit independent requests together",
        description="Each is checked and run by itself; a bad one holds up nobody. With an `Idempotency-Key` the call "
        "may be repeated.",
        scope="infer",
        parameters=(
            "idempotency-key",
            "content-encoding",
            "tidegate-timeout-ms",
            "tidegate-deadline-ms",
            "tidegate-execution-timeout-ms",
            "tidegate-priority",
            "tidegate-webhook",
        ),
        body=(Content(_BATCH, JSON, {"two": {"requests": [REQUEST, {**REQUEST, "id": "my-2"}]}}),),
        answers={
            202: Answer(
                "In the order of the requests, each a job or what is wrong with it.",
                (Content(_MANY, JSON, {"two": {"jobs": [QUEUED, _UNKNOWN]}}),),
            )
        },
        codes=_BATCH_CODES,
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/webhook",
        id="getJobWebhook",
        tag="Jobs",
        summary="How a job's webhook stands",
        description="Apart from the job's own state: the result is there although nobody could be told.",
        scope="jobs",
        answers={200: Answer("The webhook.", (Content(_WEBHOOK, JSON, {"pending": _PENDING}),))},
        codes=(ErrorCode.JOB_NOT_FOUND, ErrorCode.UNAVAILABLE),
    ),
    Operation(
        method="POST",
        path="/v1/jobs/{id}/webhook/redeliver",
        id="redeliverJobWebhook",
        tag="Jobs",
        summary="Have a job's webhook delivered again",
        scope="jobs",
        answers={202: Answer("It is begun anew.", (Content(_WEBHOOK, JSON, {"pending": _PENDING}),))},
        codes=(ErrorCode.JOB_NOT_FOUND, ErrorCode.RESULT_EXPIRED, ErrorCode.CONFLICT, ErrorCode.UNAVAILABLE),
    ),
)
