"""What the OpenAPI document says of inference and of the protocol's routes about models. Knows no logic."""

from __future__ import annotations

from gateway.openapi_operation import JSON, OCTETS, Answer, Content, Operation
from schemas.errors import ErrorCode

REQUEST = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.0, 0.5, 1.0, 0.25]}],
    "id": "my-1",
}
_CLOCKS = {
    **REQUEST,
    "parameters": {"timeout": 500000, "deadline_ms": 2000, "priority": 1},
    "outputs": [{"name": "scores", "parameters": {"classification": 3}}],
}
_RESPONSE = {
    "model_name": "digits",
    "model_version": "1",
    "id": "my-1",
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 0.75]}],
    "parameters": {
        "queue_us": 1400,
        "load_us": 0,
        "assemble_us": 60,
        "infer_us": 900,
        "publish_us": 40,
        "batch_rows": 8,
        "batch_requests": 8,
    },
}
QUEUED = {
    "id": "AUr6ai4Nrd7LOfYArMyQ",
    "model": "digits",
    "state": "queued",
    "position": None,
    "created_at": None,
    "started_at": None,
    "finished_at": None,
    "error": None,
    "links": {"self": "/v1/jobs/AUr6ai4Nrd7LOfYArMyQ", "result": "/v1/jobs/AUr6ai4Nrd7LOfYArMyQ/result"},
    "reason": None,
}
_REQUEST_BODY = (
    Content("InferenceRequest", JSON, {"numbers": REQUEST, "clocks and classes": _CLOCKS}),
    Content({"type": "string", "format": "binary"}, OCTETS),
)
RESULT = (Content("InferenceResponse", JSON, {"numbers": _RESPONSE}), Content({"type": "string"}, OCTETS))
_ABOUT_INFER = """\
Runs a request and answers with its result. The body is JSON, or JSON followed by raw tensors: then the header
`Inference-Header-Content-Length` says how long the JSON part is. With that header 0 the whole body is the model's one
input, raw. Bodies may be compressed (`Content-Encoding`).

When the wait is over before there is a result, the answer is 202 and a job: the request goes on, its result is kept,
and nothing is computed twice. `Prefer: wait=5` sets the wait in seconds, `Prefer: respond-async` asks for a job at
once.
"""
_RUN = (
    "prefer",
    "inference-header-content-length",
    "content-encoding",
    "accept-encoding",
    "idempotency-key",
    "tidegate-timeout-ms",
    "tidegate-deadline-ms",
    "tidegate-execution-timeout-ms",
    "tidegate-priority",
    "tidegate-webhook",
)
_RUN_ANSWERS = {
    200: Answer("The result.", RESULT, ("Inference-Header-Content-Length", "Preference-Applied", "Content-Encoding")),
    202: Answer(
        "A job: it goes on, look at `Location`.",
        (Content("JobDocument", JSON, {"queued": QUEUED}),),
        ("Location", "Retry-After", "Preference-Applied"),
    ),
}
_RUN_CODES = (
    ErrorCode.INVALID_REQUEST,
    ErrorCode.UNDECODABLE_RECORD,
    ErrorCode.MODEL_NOT_FOUND,
    ErrorCode.PAYLOAD_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.IDEMPOTENCY_MISMATCH,
    ErrorCode.CONFLICT,
    ErrorCode.CANCELLED,
    ErrorCode.MODEL_FAILED,
    ErrorCode.UNSUPPORTED,
    ErrorCode.MODEL_LOAD_FAILED,
    ErrorCode.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.EXECUTION_TIMEOUT,
)
_METADATA = {
    "name": "digits",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 2]}],
}
_CONFIG = {"name": "digits", "max_batch_size": 32, "dynamic_batching": {"max_queue_delay_microseconds": 2000}}
_NONE = {"count": 0, "ns": 0}
_STATISTICS = {
    "model_stats": [
        {
            "name": "digits",
            "version": "1",
            "last_inference": 1764500000000,
            "inference_count": 64,
            "execution_count": 8,
            "inference_stats": {
                "success": {"count": 64, "ns": 128000000},
                "fail": _NONE,
                "queue": {"count": 64, "ns": 64000000},
                "compute_input": {"count": 64, "ns": 3840000},
                "compute_infer": {"count": 64, "ns": 57600000},
                "compute_output": {"count": 64, "ns": 2560000},
                "cache_hit": _NONE,
                "cache_miss": _NONE,
            },
            "batch_stats": [
                {
                    "batch_size": 8,
                    "compute_input": {"count": 8, "ns": 480000},
                    "compute_infer": {"count": 8, "ns": 7200000},
                    "compute_output": {"count": 8, "ns": 320000},
                }
            ],
            "memory_usage": [],
        }
    ]
}
_UNKNOWN = (ErrorCode.MODEL_NOT_FOUND, ErrorCode.UNAVAILABLE)
_MODEL, _VERSIONED = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"


def _one(description: str, schema: str, example: object) -> dict[int, Answer]:
    return {200: Answer(description, (Content(schema, JSON, {"answer": example}),))}


def _infer(path: str, id_: str, summary: str) -> Operation:
    return Operation(
        method="POST",
        path=f"{path}/infer",
        id=id_,
        tag="Inference",
        summary=summary,
        description=_ABOUT_INFER,
        scope="infer",
        parameters=_RUN,
        body=_REQUEST_BODY,
        answers=_RUN_ANSWERS,
        codes=_RUN_CODES,
    )


def _about(path: str, suffix: str) -> tuple[Operation, ...]:
    """The GET routes that are there for a model and for one of its versions."""
    of = "a model" if path == _MODEL else "a version of a model"
    return (
        Operation(
            method="GET",
            path=path,
            id=f"getModel{suffix}",
            tag="Models",
            summary=f"What {of} takes and gives",
            answers=_one("Metadata.", "ModelMetadata", _METADATA),
            codes=_UNKNOWN,
        ),
        Operation(
            method="GET",
            path=f"{path}/ready",
            id=f"getModelReady{suffix}",
            tag="Models",
            summary=f"Whether requests for {of} are taken",
            answers=_one("They are.", "ModelReady", {"name": "digits", "ready": True}),
            codes=_UNKNOWN,
        ),
        Operation(
            method="GET",
            path=f"{path}/config",
            id=f"getModelConfig{suffix}",
            tag="Models",
            summary=f"How {of} is served",
            answers=_one("The configuration, in Triton's field names.", "ModelConfig", _CONFIG),
            codes=(*_UNKNOWN, ErrorCode.UNSUPPORTED),
        ),
        Operation(
            method="GET",
            path=f"{path}/stats",
            id=f"getModelStatistics{suffix}",
            tag="Models",
            summary=f"What the workers have done with {of}",
            answers=_one("Statistics.", "StatisticsDocument", _STATISTICS),
            codes=_UNKNOWN,
        ),
    )


OPERATIONS = (
    _infer(_MODEL, "infer", "Run a request on a model"),
    _infer(_VERSIONED, "inferVersion", "Run a request on a version of a model"),
    *_about(_MODEL, ""),
    *_about(_VERSIONED, "Version"),
    Operation(
        method="GET",
        path="/v2/models/stats",
        id="getStatistics",
        tag="Models",
        summary="What the workers have done with all models",
        answers=_one("Statistics of the models that you may see.", "StatisticsDocument", _STATISTICS),
    ),
    Operation(
        method="GET",
        path="/v2",
        id="getServer",
        tag="Server",
        summary="What the server is and which extensions of the protocol work",
        scope="",
        answers=_one(
            "Server metadata.",
            "ServerMetadata",
            {"name": "tidegate", "version": "0.1.0", "extensions": ["binary_tensor_data", "statistics"]},
        ),
    ),
    Operation(
        method="GET",
        path="/v2/health/live",
        id="getLive",
        tag="Server",
        summary="Whether the process runs",
        scope="",
        answers=_one("It does.", "Live", {"live": True}),
    ),
    Operation(
        method="GET",
        path="/v2/health/ready",
        id="getReady",
        tag="Server",
        summary="Whether requests are taken",
        description="503 while the gateway starts, until it has reached Kafka, and while it stops.",
        scope="",
        answers={
            200: Answer("They are.", (Content("Ready", JSON, {"ready": {"ready": True}}),)),
            503: Answer("Not now.", (Content("Ready", JSON, {"not ready": {"ready": False}}),)),
        },
    ),
)
