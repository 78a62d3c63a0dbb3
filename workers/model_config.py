"""ModelConfig: what the engine needs to know of a model, in whatever form it was configured.

Must not know config.pbtxt or protobuf (config_pbtxt.py reads those), no repository and no ML library.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, TensorSpec

# Each is a module of this name in workers/backends.
BACKENDS = ("device", "onnxruntime", "python", "pytorch", "tensorrt")
# The batch size of a model that can be batched and says no size. Triton's rule has 4 here; a queue in Kafka is deeper.
DEFAULT_MAX_BATCH_SIZE = 32

_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch", "tensorrt": "tensorrt_plan"}
_BATCHED_BY_DEFAULT = ("onnxruntime", "tensorrt")


class ModelConfigError(InferenceError):
    """A model's configuration is wrong or asks for what is not there; names field, value and remedy."""

    def __init__(self, message: str, *, field: str, value: Any = "", remedy: str = "") -> None:
        super().__init__(ErrorCode.MODEL_LOAD_FAILED, message, field=field, value=value, remedy=remedy)


class VersionPolicy(msgspec.Struct, frozen=True):
    """Which of the versions in the repository are served. `count` belongs to latest, `versions` to specific."""

    kind: Literal["latest", "all", "specific"] = "latest"
    count: int = 1
    versions: tuple[int, ...] = ()

    def choose(self, available: Iterable[int]) -> tuple[int, ...]:
        """The versions to serve, ascending numerically; those of a specific policy that do not exist are left out."""
        ascending = sorted(set(available))
        if self.kind == "latest":
            return tuple(ascending[-self.count :])
        if self.kind == "specific":
            return tuple(version for version in ascending if version in self.versions)
        return tuple(ascending)


class WarmUpInput(msgspec.Struct, frozen=True):
    """One input of a warm-up sample; `shape` is without the batch dimension, `filename` belongs to `file`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    source: Literal["zero", "random", "file"]
    filename: str = ""


class WarmUp(msgspec.Struct, frozen=True):
    """A sample to run, `count` times, before a model is ready. `rows` 0: the model has no batch dimension."""

    name: str
    rows: int
    count: int
    inputs: tuple[WarmUpInput, ...]


class QueuePolicy(msgspec.Struct, frozen=True):
    """How long a request of one priority level may wait, and how many may. Counted from its arrival at the broker.

    `default_timeout_us` 0: without end. `allow_timeout_override`: the request's own timeout counts where it is shorter.
    `max_queue_size` 0: no limit. "delay": what is over its timeout is served after everything that is not.
    """

    timeout_action: Literal["reject", "delay"] = "reject"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


class InstanceGroup(msgspec.Struct, frozen=True):
    """Copies of a model. `count` is per listed GPU; no `gpus`: all there are. "auto": GPUs if there are any."""

    kind: Literal["auto", "cpu", "gpu"] = "auto"
    count: int = 1
    gpus: tuple[int, ...] = ()


class Accelerator(msgspec.Struct, frozen=True):
    """An execution accelerator of ONNX Runtime, such as "tensorrt" on the GPU, with its parameters."""

    name: str
    parameters: dict[str, str] = {}


class Padding(msgspec.Struct, frozen=True):
    """Requests of different lengths in one batch: inputs are padded to the smallest bucket that holds them.

    `buckets` ascend; a longer request runs at its own length. `inputs` are padded along their first free dimension with
    `value`; `mask_input` (1 where there is data) and `length_input` are filled in unless the request brings them;
    `outputs` are cut back along their first free dimension to the request's own length.
    """

    buckets: tuple[int, ...]
    inputs: tuple[str, ...]
    value: float = 0.0
    mask_input: str = ""
    length_input: str = ""
    outputs: tuple[str, ...] = ()


class ModelDescription(msgspec.Struct, frozen=True):
    """What a model file says of itself. Shapes are the file's own, any batch dimension included; () may be unknown."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def is_batchable(self) -> bool:
        """True when the first dimension of every input and output is free, and so can be the batch."""
        return all(spec.shape[:1] == (-1,) for spec in (*self.inputs, *self.outputs))


class ModelConfig(msgspec.Struct, frozen=True):
    """How a model is served.

    `max_batch_size` 0: shapes are exact, each request runs alone. N > 0: a leading batch dimension of 1..N rows, which
    the shapes of `inputs` and `outputs` leave out. `dynamic_batching` False: each request runs alone. No
    `preferred_batch_sizes`: whole batches only. No `default_model_filename`: the backend's usual name. Reshapes, by
    tensor: the model takes or gives this shape, without the batch dimension, where callers see that of `inputs` or
    `outputs`. Priority level 1 is the highest, 0 levels: there are none; `queue_policies` are by level.
    `execution_timeout_ms` 0: a batch may run without end.
    """

    name: str
    backend: str
    max_batch_size: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dynamic_batching: bool = False
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    parameters: dict[str, str] = {}
    default_model_filename: str = ""
    version_policy: VersionPolicy = VersionPolicy()
    warm_ups: tuple[WarmUp, ...] = ()
    input_reshapes: dict[str, tuple[int, ...]] = {}
    output_reshapes: dict[str, tuple[int, ...]] = {}
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    queue_policies: dict[int, QueuePolicy] = {}
    instance_groups: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    metric_tags: dict[str, str] = {}
    gpu_accelerators: tuple[Accelerator, ...] = ()
    cpu_accelerators: tuple[Accelerator, ...] = ()
    graph_level: int = 0
    padding: Padding | None = None
    execution_timeout_ms: int = 0

    @property
    def is_complete(self) -> bool:
        """False while inputs or outputs are to be taken from the model file."""
        return bool(self.inputs and self.outputs)

    def metadata(self, versions: Sequence[str]) -> ModelMetadata:
        """What callers are told; `versions` are the served ones in ascending order."""
        return ModelMetadata(
            name=self.name,
            versions=tuple(versions),
            platform=_PLATFORMS.get(self.backend, self.backend),
            max_batch_size=self.max_batch_size,
            inputs=self.inputs,
            outputs=self.outputs,
        )

    def completed(self, description: ModelDescription) -> ModelConfig:
        """The configuration with what it leaves out taken from the model file.

        The batch size is taken only where neither inputs nor outputs are given: shapes that are given without a batch
        size are exact. Raises ModelConfigError when the model cannot be batched as configured.
        """
        max_batch_size = self.max_batch_size
        if not max_batch_size and not self.inputs and not self.outputs and description.is_batchable:
            max_batch_size = DEFAULT_MAX_BATCH_SIZE
        completed = msgspec.structs.replace(
            self,
            max_batch_size=max_batch_size,
            inputs=self.inputs or self._without_batch(description.inputs, max_batch_size),
            outputs=self.outputs or self._without_batch(description.outputs, max_batch_size),
            dynamic_batching=self.dynamic_batching or is_batched_by_default(self.backend, max_batch_size),
        )
        completed.check_preferred_sizes()
        return completed

    def _without_batch(self, specs: tuple[TensorSpec, ...], max_batch_size: int) -> tuple[TensorSpec, ...]:
        if not max_batch_size:
            return specs
        for spec in specs:
            if spec.shape[:1] != (-1,):
                raise self._unbatchable(spec)
        return tuple(msgspec.structs.replace(spec, shape=spec.shape[1:]) for spec in specs)

    def check_preferred_sizes(self) -> None:
        """Raise ModelConfigError for a preferred batch size that no batch can have."""
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= self.max_batch_size:
                raise ModelConfigError(
                    f"model {self.name!r} prefers batches of {size}, possible are 1 to {self.max_batch_size}",
                    field="dynamic_batching.preferred_batch_size",
                    value=size,
                    remedy=f"give sizes from 1 to max_batch_size ({self.max_batch_size})",
                )

    def check_agrees(self, description: ModelDescription) -> None:
        """Raise ModelConfigError unless names, datatypes and shapes fit the model file; outputs may be left out."""
        given = {spec.name for spec in self.inputs}
        for spec in description.inputs:
            if spec.name not in given and not spec.optional:
                raise ModelConfigError(
                    f"the configuration of model {self.name!r} leaves out input {spec.name!r}",
                    field="input",
                    value=sorted(given),
                    remedy=f"add {spec.name!r}, {spec.datatype} of shape {list(spec.shape)} in the model file",
                )
        self._check_specs("input", self.inputs, description.inputs)
        self._check_specs("output", self.outputs, description.outputs)

    def _check_specs(self, kind: str, specs: tuple[TensorSpec, ...], described: tuple[TensorSpec, ...]) -> None:
        known = {spec.name: spec for spec in described}
        for spec in specs:
            actual = known.get(spec.name)
            if actual is None:
                raise ModelConfigError(
                    f"model {self.name!r} has no {kind} {spec.name!r} in its file",
                    field=f"{kind}.name",
                    value=spec.name,
                    remedy=f"its {kind}s are {', '.join(known)}",
                )
            if spec.datatype != actual.datatype:
                raise ModelConfigError(
                    f"{kind} {spec.name!r} of model {self.name!r} is configured as {spec.datatype}, its file has "
                    f"{actual.datatype}",
                    field=f"{kind}.{spec.name}.data_type",
                    value=spec.datatype,
                    remedy=f"configure {actual.datatype}",
                )
            self._check_shape(kind, spec, actual)

    def _check_shape(self, kind: str, spec: TensorSpec, actual: TensorSpec) -> None:
        if not actual.shape:
            return  # a file need not tell shapes, and () is also how it tells that it does not
        shape = (-1, *spec.shape) if self.max_batch_size else spec.shape
        if self.max_batch_size and actual.shape[0] not in (-1, 1 if self.max_batch_size == 1 else -1):
            raise self._unbatchable(actual)
        if len(shape) != len(actual.shape) or any(
            -1 not in pair and pair[0] != pair[1] for pair in zip(shape, actual.shape, strict=True)
        ):
            raise ModelConfigError(
                f"{kind} {spec.name!r} of model {self.name!r} is configured with shape {list(shape)}, its file has "
                f"{list(actual.shape)}",
                field=f"{kind}.{spec.name}.dims",
                value=list(spec.shape),
                remedy="with max_batch_size > 0, dims leave the batch dimension out",
            )

    def _unbatchable(self, spec: TensorSpec) -> ModelConfigError:
        return ModelConfigError(
            f"model {self.name!r} cannot be batched: {spec.name!r} has shape {list(spec.shape)} in its file, the "
            "first dimension is not free",
            field="max_batch_size",
            value=self.max_batch_size,
            remedy="set max_batch_size: 0, or export the model with a free batch dimension",
        )


def is_batched_by_default(backend: str, max_batch_size: int) -> bool:
    """Whether a model that names no scheduler is batched anyway, as Triton's auto-complete does for some backends."""
    return max_batch_size > 1 and backend in _BATCHED_BY_DEFAULT


def check_backend(model: str, backend: str) -> None:
    """Raise ModelConfigError, listing the known ones, for a backend that is not there."""
    if backend not in BACKENDS:
        raise ModelConfigError(
            f"model {model!r} wants backend {backend!r}, which is not one of those here"
            if backend
            else f"model {model!r} says no backend, and none follows from its files",
            field="backend",
            value=backend,
            remedy=f"use one of {', '.join(BACKENDS)}",
        )
