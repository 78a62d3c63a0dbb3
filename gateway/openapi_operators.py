"""What the OpenAPI document says of the routes for operators and for people. Knows no logic."""

from __future__ import annotations

from gateway.openapi_operation import JSON, Answer, Content, Operation
from schemas.errors import ErrorCode
from schemas.worker_report import LATENCY_BOUNDS_MS

_INDEX = [
    {"name": "digits", "version": "1", "state": "READY", "reason": ""},
    {"name": "voice", "version": "3", "state": "UNAVAILABLE", "reason": "model.onnx is no ONNX file"},
]
_STATUS = {
    "at": "2026-11-30T12:00:00.000+00:00",
    "version": "0.1.0",
    "state": "serving",
    "in_flight": 3,
    "latency_bounds_ms": list(LATENCY_BOUNDS_MS),
    "pools": [{"name": "default", "models": 1, "workers": 1, "backlog": 120, "backlog_s": 1.5, "reason": ""}],
    "models": [
        {
            "name": "digits",
            "pool": "default",
            "versions": [{"version": "1", "states": {"ready": 1}, "memory_bytes": 12000000, "reason": ""}],
            "backlog": 120,
            "backlog_s": 1.5,
            "succeeded": 64,
            "failed": 0,
            "rows": 64,
            "batches": 8,
            "last_inference_at": "2026-11-30T11:59:59.100+00:00",
            "batch_sizes": [{"rows": 8, "count": 8, "infer_ms": 0.9}],
            "latency_counts": [0, 60, 4, *[0] * (len(LATENCY_BOUNDS_MS) - 2)],
        }
    ],
    "workers": [
        {
            "id": "w-1",
            "pool": "default",
            "host": "node-7",
            "state": "serving",
            "started_at": "2026-11-30T11:00:00.000+00:00",
            "told_at": "2026-11-30T11:59:59.500+00:00",
            "version": "0.1.0",
            "devices": ["cpu"],
            "in_memory": 1,
            "memory_bytes": 12000000,
        }
    ],
}
_SCALE = {"pool": "default", "backlog": 120, "models": {"digits": {"backlog": 120}}, "partitions": 8}
_HTML = (Content({"type": "string"}, "text/html"),)
_READ_CODES = (ErrorCode.MODEL_NOT_FOUND, ErrorCode.UNAVAILABLE)
_BODY_CODES = (ErrorCode.INVALID_REQUEST, ErrorCode.PAYLOAD_TOO_LARGE)
_WISH_CODES = (
    *_BODY_CODES,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.UNSUPPORTED,
    ErrorCode.UNAVAILABLE,
    ErrorCode.MODEL_LOAD_FAILED,
)


def _page(path: str, id_: str, summary: str, *codes: ErrorCode) -> Operation:
    return Operation(
        method="GET",
        path=path,
        id=id_,
        tag="For people",
        summary=summary,
        scope="",
        answers={200: Answer("A page.", _HTML)},
        codes=codes,
    )


def _index(head: str, suffix: str) -> Operation:
    return Operation(
        method="POST",
        path=f"{head}/index",
        id=f"listModels{suffix}",
        tag="Repository",
        summary="List models and whether they are ready",
        body=(Content("IndexRequest", JSON, {"ready ones": {"ready": True}, "all": {}}),),
        is_body_required=False,
        answers={
            200: Answer(
                "All versions of the models that you may see.",
                (
                    Content(
                        {"type": "array", "items": {"$ref": "#/components/schemas/IndexEntry"}}, JSON, {"two": _INDEX}
                    ),
                ),
            )
        },
        codes=_BODY_CODES,
    )


def _wishes(head: str, suffix: str) -> tuple[Operation, ...]:
    return (
        Operation(
            method="POST",
            path=f"{head}/models/{{model}}/load",
            id=f"loadModel{suffix}",
            tag="Repository",
            summary="Load a model on the workers of its pool",
            description="Waits until every running worker has it, a minute at most. A model is loaded by its first "
            "request anyway: this only takes the wait away from that one.",
            scope="manage",
            body=(Content("LoadRequest", JSON, {"a version": {"parameters": {"version": "2"}}}),),
            is_body_required=False,
            answers={
                200: Answer("What came of it.", (Content("WishDone", JSON, {"done": _done("loaded by 2 workers")}),))
            },
            codes=_WISH_CODES,
        ),
        Operation(
            method="POST",
            path=f"{head}/models/{{model}}/unload",
            id=f"unloadModel{suffix}",
            tag="Repository",
            summary="Have a model leave the memory of its workers",
            description="It is served on: its next request loads it again.",
            scope="manage",
            body=(Content({"type": "object"}, JSON, {"nothing to say": {}}),),
            is_body_required=False,
            answers={
                200: Answer("What came of it.", (Content("WishDone", JSON, {"done": _done("unloaded by 2 workers")}),))
            },
            codes=_WISH_CODES,
        ),
    )


def _done(result: str) -> dict[str, str]:
    return {"name": "digits", "result": result}


OPERATIONS = (
    _index("/v2/repository", ""),
    _index("/v2/repository/{repository}", "Of"),
    *_wishes("/v2/repository", ""),
    *_wishes("/v2/repository/{repository}", "Of"),
    Operation(
        method="GET",
        path="/scaling/v1/pools/{pool}",
        id="getScale",
        tag="Operating",
        summary="A pool's backlog, for autoscalers",
        description="A backlog that cannot be read is an error, never 0.",
        answers={200: Answer("What waits.", (Content("PoolScale", JSON, {"a pool": _SCALE}),))},
        codes=_READ_CODES,
    ),
    Operation(
        method="GET",
        path="/metrics",
        id="getMetrics",
        tag="Operating",
        summary="Metrics of this gateway, for Prometheus",
        scope="",
        answers={200: Answer("The text format.", (Content({"type": "string"}, "text/plain"),))},
    ),
    Operation(
        method="GET",
        path="/status.json",
        id="getStatus",
        tag="Operating",
        summary="Pools, models and workers at a glance",
        answers={200: Answer("What you may see of them.", (Content("StatusDocument", JSON, {"small": _STATUS}),))},
    ),
    _page("/status", "getStatusPage", "The same as a page that keeps itself up to date"),
    Operation(
        method="GET",
        path="/status.js",
        id="getStatusScript",
        tag="For people",
        summary="The script of that page",
        scope="",
        answers={200: Answer("A script.", (Content({"type": "string"}, "text/javascript"),))},
    ),
    _page("/docs", "getDocs", "This documentation as a page"),
    Operation(
        method="GET",
        path="/openapi.json",
        id="getOpenApi",
        tag="For people",
        summary="This documentation as an OpenAPI document",
        scope="",
        answers={200: Answer("OpenAPI 3.1.", (Content({"type": "object"}, JSON),))},
    ),
    _page("/errors", "getErrors", "All kinds of errors"),
    Operation(
        method="GET",
        path="/errors/{code}",
        id="getError",
        tag="For people",
        summary="What an error means and what to do about it",
        description="Problem documents' `type` leads here.",
        scope="",
        answers={
            200: Answer("A page.", _HTML),
            404: Answer("There is no such code.", (Content("Problem", "application/problem+json"),)),
        },
    ),
)
