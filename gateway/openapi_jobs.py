"""What the OpenAPI document says of jobs. Knows no logic."""

from __future__ import annotations

from gateway.openapi_inference import QUEUED, RESULT
from gateway.openapi_operation import JSON, Answer, Content, Operation
from schemas.errors import ErrorCode

_RUNNING = {**QUEUED, "state": "running", "created_at": "2026-11-30T12:00:00.000+00:00"}
_WAITING = {
    **QUEUED,
    "position": 17,
    "created_at": "2026-11-30T12:00:00.000+00:00",
    "reason": "model loading, 40% fetched",
}
_FAILED = {
    **QUEUED,
    "state": "failed",
    "created_at": "2026-11-30T12:00:00.000+00:00",
    "started_at": "2026-11-30T12:00:01.250+00:00",
    "finished_at": "2026-11-30T12:00:01.400+00:00",
    "error": {
        "type": "/errors/model_failed",
        "title": "model failed",
        "status": 500,
        "detail": "the model raised ValueError: negative age",
        "code": "model_failed",
        "retryable": False,
        "error": "the model raised ValueError: negative age",
        "request_id": "3f2a9c1d-1a",
    },
}
JOB_STATES = {"queued": _WAITING, "running": _RUNNING, "failed": _FAILED}
LOOK_UP_CODES = (
    ErrorCode.JOB_NOT_FOUND,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.RESULT_EXPIRED,
    ErrorCode.UNAVAILABLE,
)
_ENDED_CODES = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNDECODABLE_RECORD,
    ErrorCode.CANCELLED,
    ErrorCode.MODEL_FAILED,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.EXECUTION_TIMEOUT,
)

OPERATIONS = (
    Operation(
        method="GET",
        path="/v1/jobs/{id}",
        id="getJob",
        tag="Jobs",
        summary="Where a job stands",
        description="Any gateway answers for any job. While it is queued, `position` counts the requests before it "
        "that are not done, and `reason` says what it waits for. The states succeeded, failed, expired and cancelled "
        "are final.",
        scope="jobs",
        answers={200: Answer("The job.", (Content("JobDocument", JSON, JOB_STATES),))},
        codes=LOOK_UP_CODES,
    ),
    Operation(
        method="GET",
        path="/v1/jobs/{id}/result",
        id="getJobResult",
        tag="Jobs",
        summary="A job's result",
        description="What the synchronous call would have answered: the result, or the error that the job ended with. "
        "Raw tensors for `Accept: application/octet-stream`.",
        scope="jobs",
        parameters=("accept",),
        answers={
            200: Answer("The result.", RESULT, ("Inference-Header-Content-Length",)),
            202: Answer("There is none yet.", (Content("JobDocument", JSON, {"queued": _WAITING}),), ("Retry-After",)),
        },
        codes=(*LOOK_UP_CODES, *_ENDED_CODES),
    ),
)
