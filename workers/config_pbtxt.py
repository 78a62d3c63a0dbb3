"""config.pbtxt: Triton's model configuration text, read with its official protobuf schema into a ModelConfig.

Must not know repositories, backends' libraries or model files. Importing this is light; the schema (which brings
grpc along) is imported by the first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import structlog

from schemas.model import TensorSpec
from workers.model_config import (
    InstanceGroup,
    ModelConfig,
    ModelConfigError,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
    check_backend,
    is_batched_by_default,
)

_LOG = structlog.get_logger(__name__)

_BACKEND_OF_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
}
_BACKEND_OF_SUFFIX = {"onnx": "onnxruntime", "pt": "pytorch", "pt2": "pytorch", "plan": "tensorrt", "py": "python"}
_KIND_CPU = 2  # ModelInstanceGroup.Kind

# What is read below. A path names everything under it too.
_READ = {
    "name",
    "backend",
    "platform",
    "max_batch_size",
    "version_policy",
    "input.name",
    "input.data_type",
    "input.dims",
    "input.optional",
    "output.name",
    "output.data_type",
    "output.dims",
    "dynamic_batching.preferred_batch_size",
    "dynamic_batching.max_queue_delay_microseconds",
    "instance_group.name",
    "instance_group.count",
    "default_model_filename",
    "parameters",
}
# What must not be ignored, for answers would be wrong, and what to do instead.
_REFUSED = {
    "sequence_batching": "keep the sequence's state in the caller, or send whole sequences",
    "ensemble_scheduling": "call the models one after the other",
    "model_transaction_policy.decoupled": "give one response for each request",
    "batch_input": "pad the inputs, or compute the batch's sizes in the model",
    "batch_output": "give outputs with a batch dimension",
    "input.allow_ragged_batch": "pad the input, or set max_batch_size: 0",
    "input.reshape": "give dims as the model file has them",
    "output.reshape": "give dims as the model file has them",
    "input.is_shape_tensor": "use an execution format without shape tensors",
    "output.is_shape_tensor": "use an execution format without shape tensors",
    "input.is_non_linear_format_io": "use linear memory formats",
    "output.is_non_linear_format_io": "use linear memory formats",
}


def read_config(text: str, *, model: str, files: Iterable[str] = ()) -> ModelConfig:
    """Read the text of a config.pbtxt; '' (no such file) gives what is known of any model.

    `model` is the name of its directory, `files` the names in a version's directory, which say the backend where the
    text does not. A field that is not implemented is warned of by name once a read. The result may lack inputs or
    outputs (`is_complete`). Raises ModelConfigError naming field, value and remedy; for text that is no configuration
    the message has line and column.
    """
    message = _parse(text, model)
    for fault in _faults(message, model):
        raise fault
    config = _config_of(message, model, files)
    check_backend(model, config.backend)
    if config.max_batch_size or config.is_complete:
        config.check_preferred_sizes()
    for path in _ignored(message):
        _LOG.warning("model_config_field_ignored", model=model, field=path)
    return config


def _parse(text: str, model: str) -> Any:
    """The protobuf message. Any: protobuf publishes no types."""
    from google.protobuf import text_format  # type: ignore[import-untyped]  # protobuf publishes no types
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


def _config_of(message: Any, model: str, files: Iterable[str]) -> ModelConfig:
    batching = message.dynamic_batching
    backend = message.backend or _BACKEND_OF_PLATFORM.get(message.platform, message.platform)
    backend = backend or _backend_of_files(
        [message.default_model_filename] if message.default_model_filename else files
    )
    is_batched = message.HasField("dynamic_batching") and message.max_batch_size > 0
    return ModelConfig(
        name=model,
        backend=backend,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_spec(field) for field in message.input),
        outputs=tuple(_spec(field) for field in message.output),
        dynamic_batching=is_batched or is_batched_by_default(backend, message.max_batch_size),
        preferred_batch_sizes=tuple(sorted(set(batching.preferred_batch_size))),
        max_queue_delay_us=batching.max_queue_delay_microseconds,
        instance_groups=tuple(InstanceGroup("cpu", group.count or 1) for group in message.instance_group)
        or (InstanceGroup(),),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        default_model_filename=message.default_model_filename,
        version_policy=_version_policy(message.version_policy),
        warm_ups=tuple(_warm_up(sample) for sample in message.model_warmup),
    )


def _backend_of_files(files: Iterable[str]) -> str:
    """The backend that the names of files ask for, '' when they ask for none or for different ones."""
    suffixes = {name.rpartition(".")[2] for name in files}
    backends = {_BACKEND_OF_SUFFIX[suffix] for suffix in suffixes if suffix in _BACKEND_OF_SUFFIX}
    return backends.pop() if len(backends) == 1 else ""


def _spec(tensor: Any) -> TensorSpec:
    is_optional = tensor.DESCRIPTOR.name == "ModelInput" and tensor.optional
    return TensorSpec(tensor.name, _datatype(tensor), tuple(tensor.dims), is_optional)


def _datatype(tensor: Any) -> str:
    """The wire's name of a TYPE_... value; '' when it is not given, or a number that is no type."""
    known = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    name: str = known[tensor.data_type].name if tensor.data_type in known else "TYPE_INVALID"
    return {"TYPE_STRING": "BYTES", "TYPE_INVALID": ""}.get(name, name.removeprefix("TYPE_"))


def _version_policy(policy: Any) -> VersionPolicy:
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy("all")
    if kind == "specific":
        return VersionPolicy("specific", versions=tuple(policy.specific.versions))
    return VersionPolicy("latest", count=policy.latest.num_versions or 1)


def _warm_up(sample: Any) -> WarmUp:
    sources = {"zero_data": "zero", "random_data": "random", "input_data_file": "file", None: "zero"}
    inputs = tuple(
        WarmUpInput(
            name,
            _datatype(field),
            tuple(field.dims),
            sources[field.WhichOneof("input_data_type")],  # type: ignore[arg-type]  # the mapping's values are these
            field.input_data_file,
        )
        for name, field in sorted(sample.inputs.items())
    )
    return WarmUp(sample.name, rows=sample.batch_size, count=sample.count or 1, inputs=inputs)


def _faults(message: Any, model: str) -> Iterator[ModelConfigError]:
    """Everything that is wrong with a configuration by itself, one by one."""
    if message.name and message.name != model:
        yield _fault(
            model, "name", message.name, "differs from its directory's", f"name it {model!r}, or leave name out"
        )
    if message.platform == "ensemble":
        yield _fault(model, "platform", "ensemble", "is not supported", _REFUSED["ensemble_scheduling"])
    elif message.platform and message.platform not in _BACKEND_OF_PLATFORM and not message.backend:
        known = ", ".join(_BACKEND_OF_PLATFORM)
        yield _fault(model, "platform", message.platform, "is unknown", f"give backend, or one of {known}")
    if message.max_batch_size < 0:
        yield _fault(model, "max_batch_size", message.max_batch_size, "is negative", "use 0 for no batch dimension")
    for group in message.instance_group:
        if group.count < 0:
            yield _fault(model, "instance_group.count", group.count, "is negative", "give 1 or more")
    if any(size <= 0 for size in message.dynamic_batching.preferred_batch_size):
        sizes = list(message.dynamic_batching.preferred_batch_size)
        field = "dynamic_batching.preferred_batch_size"
        yield _fault(model, field, sizes, "has a size below 1", "give sizes from 1 to max_batch_size")
    yield from _tensor_faults(message.input, "input", model)
    yield from _tensor_faults(message.output, "output", model)
    for path, value in _leaves(message, into_refused=False):
        if path in _REFUSED:
            yield _fault(model, path, value, "is not supported and cannot be ignored", _REFUSED[path])


def _tensor_faults(tensors: Sequence[Any], kind: str, model: str) -> Iterator[ModelConfigError]:
    names = [tensor.name for tensor in tensors]
    for index, tensor in enumerate(tensors):
        path = f"{kind}.{tensor.name or index}"
        if not tensor.name:
            yield _fault(model, f"{path}.name", "", "is missing", "name every tensor as the model file does")
        elif names.index(tensor.name) != index:
            yield _fault(model, f"{path}.name", tensor.name, "is given twice", "name each tensor once")
        if not _datatype(tensor):
            yield _fault(
                model,
                f"{path}.data_type",
                tensor.data_type or "",
                "is missing or no type",
                "give one of TYPE_BOOL to TYPE_BF16",
            )
        if not tensor.dims:
            yield _fault(model, f"{path}.dims", "", "is missing", f"give dims, or leave all {kind}s to the model file")
        if any(dim == 0 or dim < -1 for dim in tensor.dims):
            yield _fault(model, f"{path}.dims", list(tensor.dims), "has a size below 1", "use -1 for any size")


def _fault(model: str, field: str, value: Any, what: str, remedy: str) -> ModelConfigError:
    said = f" {value!r}" if isinstance(value, str | int | list) and value != "" else ""
    return ModelConfigError(
        f"{field}{said} in config.pbtxt of model {model!r} {what}", field=field, value=value, remedy=remedy
    )


def _leaves(message: Any, prefix: str = "", *, into_refused: bool = True) -> Iterator[tuple[str, Any]]:
    """The path and value of every field that is set to something; messages and lists of them are gone into.

    With `into_refused` False a refused message is given as a whole.
    """
    for field, value in message.ListFields():
        path = prefix + field.name
        is_message = field.message_type is not None and not field.message_type.GetOptions().map_entry
        if path == "instance_group.kind" and value == _KIND_CPU:
            continue  # what is done anyway
        if not is_message or (path in _REFUSED and not into_refused):
            yield path, value
        else:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from _leaves(part, path + ".", into_refused=into_refused)


def _ignored(message: Any) -> list[str]:
    """What is set and not read, named by the outermost field of which nothing is read."""
    ignored = set()
    for leaf, _ in _leaves(message):
        parts = leaf.split(".")
        for path in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if path in _READ:
                break
            if not any(read.startswith(path + ".") for read in _READ):
                ignored.add(path)
                break
    return sorted(ignored)
