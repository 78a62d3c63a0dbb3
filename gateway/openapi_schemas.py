"""The schemas of the OpenAPI document: those of the gateway's own structs, and of the protocol's messages.

The protocol's messages are structs here as well, for the document only: what serves reads and writes them in its own
way (schemas/v2.py). A test holds their examples against both.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.problem import Problem
from gateway.repository import IndexEntry
from gateway.scaling import PoolScale
from gateway.standing import JobDocument
from gateway.status import StatusDocument
from schemas.tensor import ITEM_BYTES

Datatype = Annotated[str, Meta(description=f"One of {', '.join(ITEM_BYTES)}.", examples=["FP32"])]
Shape = Annotated[
    list[Annotated[int, Meta(ge=0)]],
    Meta(description="All dimensions, the batch's first where the model has one.", examples=[[1, 4]]),
]
Parameters = Annotated[dict[str, Any], Meta(description="Further parameters by name.")]


class RequestInput(msgspec.Struct):
    """An input tensor, as JSON or as raw bytes behind the JSON part."""

    name: Annotated[str, Meta(description="The input's name, as GET /v2/models/{model} tells it.")]
    datatype: Datatype
    shape: Shape
    data: Annotated[
        list[Any] | msgspec.UnsetType,
        Meta(description="Elements in row-major order, flat or nested. Left out when the tensor is raw."),
    ] = msgspec.UNSET
    parameters: Annotated[
        dict[str, Any] | msgspec.UnsetType,
        Meta(description="`binary_data_size`: bytes of this tensor behind the JSON part, in the inputs' order."),
    ] = msgspec.UNSET


class RequestOutput(msgspec.Struct):
    """An output that is asked for."""

    name: str
    parameters: Annotated[
        dict[str, Any] | msgspec.UnsetType,
        Meta(description="`binary_data`: true for raw bytes. `classification`: N for the N highest classes as BYTES."),
    ] = msgspec.UNSET


class InferenceRequest(msgspec.Struct):
    """A request of the Open Inference Protocol v2.

    Parameters that the gateway reads: `timeout`, microseconds until it must have begun to run; `deadline_ms`, until its
    answer is of use; `execution_timeout_ms`, how long it may run; `priority`, 1 being the highest;
    `binary_data_output`, true for raw outputs.
    """

    inputs: list[RequestInput]
    id: Annotated[str, Meta(description="Your own name for it, given back.")] = ""
    outputs: Annotated[list[RequestOutput], Meta(description="Outputs to return; none named: all.")] = []
    parameters: Parameters = {}


class ResponseOutput(msgspec.Struct):
    """An output tensor."""

    name: str
    datatype: Datatype
    shape: Shape
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class InferenceResponse(msgspec.Struct):
    """A response of the Open Inference Protocol v2. `parameters` tell where the time went, in microseconds."""

    model_name: str
    model_version: str
    outputs: list[ResponseOutput]
    id: str = ""
    parameters: Parameters = {}


class ServerMetadata(msgspec.Struct):
    """What the server is, and which extensions of the protocol work."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(msgspec.Struct):
    """An input or output; -1 is any size."""

    name: str
    datatype: Datatype
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """What a model takes and gives."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class Live(msgspec.Struct):
    """The process runs."""

    live: bool


class Ready(msgspec.Struct):
    """Requests are taken."""

    ready: bool


class ModelReady(msgspec.Struct):
    """Requests for the model are taken; one that is not in memory is loaded by them."""

    name: str
    ready: bool


class ModelConfig(msgspec.Struct):
    """The configuration that is served, in the field names of Triton's config.pbtxt; more than these."""

    name: str
    max_batch_size: int = 0


class StatisticDuration(msgspec.Struct):
    """How often, and for how long in all."""

    count: int
    ns: int


class InferenceStatistics(msgspec.Struct):
    """Of requests: how they ended, and the parts of those that were run."""

    success: StatisticDuration
    fail: StatisticDuration
    queue: StatisticDuration
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration
    cache_hit: StatisticDuration
    cache_miss: StatisticDuration


class BatchStatistics(msgspec.Struct):
    """Of batches of one size."""

    batch_size: int
    compute_input: StatisticDuration
    compute_infer: StatisticDuration
    compute_output: StatisticDuration


class ModelVersionStatistics(msgspec.Struct):
    """What all workers have done with one version, since each one's start."""

    name: str
    version: str
    last_inference: Annotated[int, Meta(description="Unix time in milliseconds, 0: never.")]
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any]


class StatisticsDocument(msgspec.Struct):
    """The statistics extension's answer."""

    model_stats: list[ModelVersionStatistics]


class IndexRequest(msgspec.Struct):
    """Which models to list."""

    ready: Annotated[bool, Meta(description="Only those that take requests.")] = False


class LoadRequest(msgspec.Struct):
    """What to load."""

    parameters: Annotated[dict[str, Any], Meta(description="`version`: of the model; without it the default one.")] = {}


class WishDone(msgspec.Struct):
    """What came of a load or an unload."""

    name: str
    result: str


_DOCUMENTED = (
    BatchStatistics,
    IndexEntry,
    IndexRequest,
    InferenceRequest,
    InferenceResponse,
    JobDocument,
    Live,
    LoadRequest,
    ModelConfig,
    ModelMetadata,
    ModelReady,
    PoolScale,
    Problem,
    Ready,
    ServerMetadata,
    StatisticsDocument,
    StatusDocument,
    WishDone,
)


def component_schemas() -> dict[str, Any]:
    """All of them by name."""
    _, components = msgspec.json.schema_components(_DOCUMENTED, ref_template="#/components/schemas/{name}")
    return dict(sorted(components.items()))
