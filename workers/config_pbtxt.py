"""config.pbtxt: Triton's model configuration text, read with its official protobuf schema into a ModelConfig.

Must not know repositories, backends' libraries or model files. Importing this is light; the schema (which brings
grpc along) is imported by the first read. Messages are Any: protobuf publishes no types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import structlog

from workers.config_faults import BACKEND_OF_PLATFORM, message_faults
from workers.config_fields import ignored_fields
from workers.config_parameters import execution_timeout_ms, padding
from workers.config_tensors import datatype_of, reshapes_of, spec_of
from workers.model_config import (
    Accelerator,
    InstanceGroup,
    ModelConfig,
    ModelConfigError,
    QueuePolicy,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
    is_batched_by_default,
)

_LOG = structlog.get_logger(__name__)

_BACKEND_OF_SUFFIX = {"onnx": "onnxruntime", "pt": "pytorch", "pt2": "pytorch", "plan": "tensorrt"}
_PYTHON_FILENAME = "model.py"  # other .py files may lie beside any model
_KINDS: dict[int, Literal["auto", "cpu", "gpu"]] = {1: "gpu", 2: "cpu"}  # ModelInstanceGroup.Kind; others are "auto"
_DELAY = 1  # ModelQueuePolicy.TimeoutAction


class ConfigReading(msgspec.Struct, frozen=True):
    """What the text of a config.pbtxt comes to. `config` is None for text that is no configuration, and only good to
    look at while there are faults. `ignored` are fields that are set and have no effect.
    """

    config: ModelConfig | None
    faults: tuple[ModelConfigError, ...]
    ignored: tuple[str, ...]


def read_config(text: str, *, model: str, files: Iterable[str] = ()) -> ModelConfig:
    """Read the text of a config.pbtxt; '' (no such file) gives what is known of any model.

    `model` is the name of its directory, `files` the names in a version's directory, which say the backend where the
    text does not. A field that is ignored is warned of by name once a read. The result may lack inputs or outputs
    (`is_complete`). Raises the first fault, a ModelConfigError naming field, value and remedy; for text that is no
    configuration the message has line and column.
    """
    reading = examine_config(text, model=model, files=files)
    for fault in reading.faults:
        raise fault
    assert reading.config is not None  # else there was a fault
    for path in reading.ignored:
        _LOG.warning("model_config_field_ignored", model=model, field=path)
    return reading.config


def examine_config(text: str, *, model: str, files: Iterable[str] = ()) -> ConfigReading:
    """Read as `read_config` does, and tell every fault instead of raising the first."""
    try:
        message = _parse(text, model)
    except ModelConfigError as fault:
        return ConfigReading(config=None, faults=(fault,), ignored=())
    backend = _backend_of(message, files)
    config = _config_of(message, model, backend).settled()
    faults = [*message_faults(message, model=model, backend=backend)]
    told = {fault.field for fault in faults}
    faults += [fault for fault in config.faults() if fault.field not in told]
    return ConfigReading(
        config=config,
        faults=tuple(fault.error(model) for fault in faults),
        ignored=tuple(ignored_fields(message, backend=backend)),
    )


def _parse(text: str, model: str) -> Any:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as cause:  # its text begins with line:column
        raise ModelConfigError(
            f"config.pbtxt of model {model!r} cannot be read, line:column {cause}",
            field="config.pbtxt",
            value=f"line {cause.GetLine()}, column {cause.GetColumn()}",
            remedy="correct the text there; fields and values are those of Triton's ModelConfig",
        ) from cause


def _config_of(message: Any, model: str, backend: str) -> ModelConfig:
    """The configuration. Raises nothing: faulty values become what is next to them."""
    batching = message.dynamic_batching
    accelerators = message.optimization.execution_accelerators
    parameters = {key: value.string_value for key, value in message.parameters.items()}
    is_batched = message.HasField("dynamic_batching") and message.max_batch_size > 0
    return ModelConfig(
        name=model,
        backend=backend,
        max_batch_size=max(0, message.max_batch_size),
        inputs=tuple(spec_of(field) for field in message.input),
        outputs=tuple(spec_of(field) for field in message.output),
        dynamic_batching=is_batched or is_batched_by_default(backend, message.max_batch_size),
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        parameters=parameters,
        default_model_filename=message.default_model_filename,
        version_policy=_version_policy(message.version_policy),
        warm_ups=tuple(_warm_up(sample) for sample in message.model_warmup),
        input_reshapes=reshapes_of(message.input),
        output_reshapes=reshapes_of(message.output),
        preserve_ordering=batching.preserve_ordering,
        priority_levels=batching.priority_levels,
        default_priority_level=batching.default_priority_level if batching.priority_levels else 0,
        default_queue_policy=_queue_policy(batching.default_queue_policy),
        queue_policies={level: _queue_policy(policy) for level, policy in batching.priority_queue_policy.items()},
        instance_groups=_instance_groups(message.instance_group),
        metric_tags=dict(message.metric_tags),
        gpu_accelerators=_accelerators(accelerators.gpu_execution_accelerator),
        cpu_accelerators=_accelerators(accelerators.cpu_execution_accelerator),
        graph_level=message.optimization.graph.level,
        padding=padding(parameters),
        execution_timeout_ms=execution_timeout_ms(parameters),
        labels={field.name: field.label_filename for field in message.output if field.label_filename},
    )


def _backend_of(message: Any, files: Iterable[str]) -> str:
    backend: str = message.backend or BACKEND_OF_PLATFORM.get(message.platform, message.platform)
    filename = message.default_model_filename
    return backend or _backend_of_files([filename] if filename else files)


def _backend_of_files(files: Iterable[str]) -> str:
    """The backend that the names of files ask for, '' when they ask for none or for different ones."""
    backends = {
        "python" if name == _PYTHON_FILENAME else _BACKEND_OF_SUFFIX.get(name.rpartition(".")[2], "") for name in files
    }
    backends.discard("")
    return backends.pop() if len(backends) == 1 else ""


def _version_policy(policy: Any) -> VersionPolicy:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy("all")
    if kind == "specific":
        return VersionPolicy("specific", versions=tuple(policy.specific.versions))
    return VersionPolicy("latest", count=policy.latest.num_versions or 1)


def _queue_policy(policy: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_action="delay" if policy.timeout_action == _DELAY else "reject",
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )


def _instance_groups(groups: Sequence[Any]) -> tuple[InstanceGroup, ...]:
    return tuple(
        InstanceGroup(_KINDS.get(group.kind, "auto"), group.count or 1, tuple(group.gpus))
        for group in groups
        if not group.passive
    ) or (InstanceGroup(),)


def _accelerators(accelerators: Sequence[Any]) -> tuple[Accelerator, ...]:
    return tuple(Accelerator(accelerator.name, dict(accelerator.parameters)) for accelerator in accelerators)


def _warm_up(sample: Any) -> WarmUp:
    return WarmUp(
        sample.name,
        rows=sample.batch_size,
        count=sample.count or 1,
        inputs=tuple(_warm_up_input(name, field) for name, field in sorted(sample.inputs.items())),
    )


def _warm_up_input(name: str, field: Any) -> WarmUpInput:
    datatype = datatype_of(field)
    source: Literal["zero", "random", "file"] = "zero"
    if field.WhichOneof("input_data_type") == "input_data_file":
        source = "file"
    elif field.WhichOneof("input_data_type") == "random_data" and datatype != "BYTES":  # Triton's rule
        source = "random"
    return WarmUpInput(name, datatype, tuple(field.dims), source, field.input_data_file)
