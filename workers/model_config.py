"""ModelConfig: what the engine needs to know of a model, in whatever form it was configured.

Must not know config.pbtxt or protobuf (config_pbtxt.py reads those), no repository and no ML library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from schemas.model import ModelMetadata, TensorSpec
from workers.config_error import ConfigFault, ModelConfigError
from workers.model_description import ModelDescription
from workers.padding_config import Padding
from workers.warm_up_config import WarmUp, WarmUpInput

__all__ = [
    "BACKENDS",
    "DEFAULT_MAX_BATCH_SIZE",
    "Accelerator",
    "ConfigFault",
    "InstanceGroup",
    "ModelConfig",
    "ModelConfigError",
    "ModelDescription",
    "Padding",
    "QueuePolicy",
    "VersionPolicy",
    "WarmUp",
    "WarmUpInput",
    "check_backend",
    "is_batched_by_default",
    "reshaped",
]

# Each is a module of this name in workers/backends.
BACKENDS = ("device", "onnxruntime", "python", "pytorch", "tensorrt")
# The batch size of a model that can be batched and says no size. Triton's rule has 4 here; a queue in Kafka is deeper.
DEFAULT_MAX_BATCH_SIZE = 32

_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch", "tensorrt": "tensorrt_plan"}
_BATCHED_BY_DEFAULT = ("onnxruntime", "tensorrt")


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


class ModelConfig(msgspec.Struct, frozen=True):
    """How a model is served.

    `max_batch_size` 0: shapes are exact, each request runs alone. N > 0: a leading batch dimension of 1..N rows, which
    the shapes of `inputs` and `outputs` leave out. `dynamic_batching` False: each request runs alone. No
    `preferred_batch_sizes`: whole batches only. No `default_model_filename`: the backend's usual name. Reshapes, by
    tensor: the model takes or gives this shape, without the batch dimension, where callers see that of `inputs` or
    `outputs`. Priority level 1 is the highest, 0 levels: there are none; `queue_policies` are by level.
    `execution_timeout_ms` 0: a batch may run without end. `labels`: by output, the file in the model's directory that
    names its classes, a line each.
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
    labels: dict[str, str] = {}

    @property
    def is_complete(self) -> bool:
        """False while inputs or outputs are to be taken from the model file."""
        return bool(self.inputs and self.outputs)

    @property
    def model_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs as the model file has them: reshapes applied, still without the batch dimension."""
        return tuple(_reshaped_spec(spec, self.input_reshapes) for spec in self.inputs)

    @property
    def model_outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs as the model file has them: reshapes applied, still without the batch dimension."""
        return tuple(_reshaped_spec(spec, self.output_reshapes) for spec in self.outputs)

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
        size are exact. Raises ModelConfigError when the file does not tell what is missing, when the model cannot be
        batched as configured, and for what `faults` finds.
        """
        max_batch_size = self.max_batch_size
        if not max_batch_size and not self.inputs and not self.outputs and description.is_batchable:
            max_batch_size = DEFAULT_MAX_BATCH_SIZE
        completed = msgspec.structs.replace(
            self,
            max_batch_size=max_batch_size,
            inputs=self.inputs or description.specs("input", model=self.name, max_batch_size=max_batch_size),
            outputs=self.outputs or description.specs("output", model=self.name, max_batch_size=max_batch_size),
            dynamic_batching=self.dynamic_batching or is_batched_by_default(self.backend, max_batch_size),
        ).settled()
        for fault in completed.faults():
            raise fault.error(self.name)
        return completed

    def settled(self) -> ModelConfig:
        """With what follows from the inputs and the batch size, as far as they are known. Idempotent."""
        filled = self.padding.filled_inputs if self.padding else ()
        warm_ups = self.warm_ups
        if self._is_batch_size_known:
            warm_ups = tuple(sample.for_batch_size(self.max_batch_size) for sample in warm_ups)
        return msgspec.structs.replace(
            self,
            inputs=tuple(
                msgspec.structs.replace(spec, optional=True) if spec.name in filled else spec for spec in self.inputs
            ),
            warm_ups=warm_ups,
        )

    def faults(self) -> Iterator[ConfigFault]:
        """Every field that does not fit another one, as far as the other one is known; see `is_complete`."""
        for size in self.preferred_batch_sizes:
            if size < 1 or (self._is_batch_size_known and size > self.max_batch_size):
                what = f"is a batch size that cannot be, with max_batch_size {self.max_batch_size}"
                remedy = "give sizes from 1 to max_batch_size"
                yield ConfigFault("dynamic_batching.preferred_batch_size", size, what, remedy)
        if self._is_batch_size_known:
            for sample in self.warm_ups:
                yield from sample.row_faults(self.max_batch_size)
            if self.padding and not self.max_batch_size:
                remedy = "set max_batch_size, or remove the padding"
                yield ConfigFault("parameters.padding_buckets", "", "needs a model that is batched", remedy)
        if self.inputs:
            for sample in self.warm_ups:
                yield from sample.input_faults(self.inputs)
            if self.padding:
                yield from self.padding.input_faults(self.inputs)
        if self.outputs and self.padding:
            yield from self.padding.output_faults(self.outputs)

    @property
    def _is_batch_size_known(self) -> bool:
        """False while it may be taken from the model file."""
        return bool(self.max_batch_size or self.inputs or self.outputs)

    def check_agrees(self, description: ModelDescription) -> None:
        """Raise ModelConfigError unless names, datatypes and shapes fit the model file; outputs may be left out.

        Shapes are those after any reshape. What the file does not tell is not compared.
        """
        description.check_inputs_given(self.inputs, model=self.name)
        batch = self.max_batch_size
        description.check("input", self.model_inputs, model=self.name, max_batch_size=batch)
        description.check("output", self.model_outputs, model=self.name, max_batch_size=batch)


def reshaped(shape: Sequence[int], dims: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """The shape of the same elements as `target` has it; `shape` fits `dims`, all without the batch dimension.

    Free dimensions (-1) of `target` are those of `dims`, in order: (7, 4) of (-1, 4) is (7, 2, 2) of (-1, 2, 2).
    """
    free = iter([size for size, dim in zip(shape, dims, strict=True) if dim == -1])
    return tuple(next(free) if dim == -1 else dim for dim in target)


def _reshaped_spec(spec: TensorSpec, reshapes: dict[str, tuple[int, ...]]) -> TensorSpec:
    return msgspec.structs.replace(spec, shape=reshapes.get(spec.name, spec.shape))


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
