"""The fields of Triton's ModelConfig, and what is done about each: the one table, which docs/model-config.md repeats.

Must not know what a field's value means; the schema is met only as messages that are handed in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from workers.config_error import ConfigFault


class Field(msgspec.Struct, frozen=True):
    """What is done about a field, and about all below it. `note`: for a refused one, what to do instead."""

    decision: Literal["implemented", "refused", "ignored"]
    note: str


def _implemented(note: str) -> Field:
    return Field("implemented", note)


def _refused(remedy: str) -> Field:
    return Field("refused", remedy)


def _ignored(note: str) -> Field:
    return Field("ignored", note)


_RAGGED = "pad the inputs (padding_buckets), or compute the batch's sizes in the model"
_SHAPE_TENSOR = "build the engine without shape tensors"
_LINEAR = "build the engine with linear formats at its inputs and outputs"
_LEVELS = "by priority level, each from 1 to priority_levels"

# Paths go through lists and maps: `input.name` is the name of each input. None of these paths is below another one.
FIELDS: dict[str, Field] = {
    "name": _implemented("the name of the model's directory, or left out"),
    "platform": _implemented("onnxruntime_onnx, pytorch_libtorch, tensorrt_plan, instead of backend"),
    "backend": _implemented("onnxruntime, pytorch, tensorrt, python, device; left out: by the model file's suffix"),
    "runtime": _ignored("a backend has one runtime here"),
    "version_policy.latest.num_versions": _implemented("the highest ones; the default is latest 1"),
    "version_policy.all": _implemented("every numeric directory"),
    "version_policy.specific.versions": _implemented("at least one"),
    "max_batch_size": _implemented("0: no batch dimension, shapes are exactly dims"),
    "input.name": _implemented("as in the model file"),
    "input.data_type": _implemented("all 14 types"),
    "input.format": _implemented("checked: FORMAT_NHWC and FORMAT_NCHW need three dims; nothing else depends on it"),
    "input.dims": _implemented("without the batch dimension; -1 is any size"),
    "input.reshape.shape": _implemented("the shape that the model file has, of as many elements as dims; may be empty"),
    "input.is_shape_tensor": _refused(_SHAPE_TENSOR),
    "input.allow_ragged_batch": _refused(_RAGGED),
    "input.optional": _implemented("requests may leave the input out; those with the same inputs share a batch"),
    "input.is_non_linear_format_io": _refused(_LINEAR),
    "output.name": _implemented("as in the model file"),
    "output.data_type": _implemented("all 14 types"),
    "output.dims": _implemented("without the batch dimension; -1 is any size"),
    "output.reshape.shape": _implemented("the shape that the model file has, of as many elements as dims"),
    "output.label_filename": _implemented("a file in the model's directory that names the classes, a line each"),
    "output.is_shape_tensor": _refused(_SHAPE_TENSOR),
    "output.is_non_linear_format_io": _refused(_LINEAR),
    "batch_input": _refused(_RAGGED),
    "batch_output": _refused("give outputs with a batch dimension"),
    "optimization.graph.level": _implemented("onnxruntime; ignored for other backends"),
    "optimization.priority": _ignored("instances of all models have the same priority"),
    "optimization.cuda": _ignored("only about speed"),
    "optimization.execution_accelerators.gpu_execution_accelerator.name": _implemented(
        "onnxruntime: tensorrt, cuda; ignored for other backends"
    ),
    "optimization.execution_accelerators.gpu_execution_accelerator.parameters": _implemented(
        "onnxruntime; ignored for other backends"
    ),
    "optimization.execution_accelerators.cpu_execution_accelerator.name": _implemented(
        "onnxruntime: openvino; ignored for other backends"
    ),
    "optimization.execution_accelerators.cpu_execution_accelerator.parameters": _implemented(
        "onnxruntime; ignored for other backends"
    ),
    "optimization.input_pinned_memory": _ignored("only about speed; inputs are staged in pinned memory where it helps"),
    "optimization.output_pinned_memory": _ignored("only about speed"),
    "optimization.gather_kernel_buffer_threshold": _ignored("only about speed"),
    "optimization.eager_batching": _ignored("only about speed; a batch is prepared while the one before it runs"),
    "dynamic_batching.preferred_batch_size": _implemented("each from 1 to max_batch_size"),
    "dynamic_batching.max_queue_delay_microseconds": _implemented("counted from the arrival at the broker"),
    "dynamic_batching.preserve_ordering": _implemented("not with priority_levels above 1, nor DELAY with a timeout"),
    "dynamic_batching.priority_levels": _implemented("1 is the highest"),
    "dynamic_batching.default_priority_level": _implemented("1 to priority_levels; ignored without levels"),
    "dynamic_batching.default_queue_policy.timeout_action": _implemented("REJECT or DELAY"),
    "dynamic_batching.default_queue_policy.default_timeout_microseconds": _implemented("0: none"),
    "dynamic_batching.default_queue_policy.allow_timeout_override": _implemented("a request may only lower it"),
    "dynamic_batching.default_queue_policy.max_queue_size": _implemented("0: no limit"),
    "dynamic_batching.priority_queue_policy.timeout_action": _implemented(_LEVELS),
    "dynamic_batching.priority_queue_policy.default_timeout_microseconds": _implemented(_LEVELS),
    "dynamic_batching.priority_queue_policy.allow_timeout_override": _implemented(_LEVELS),
    "dynamic_batching.priority_queue_policy.max_queue_size": _implemented(_LEVELS),
    "sequence_batching": _refused("keep the sequence's state in the caller, or send whole sequences"),
    "ensemble_scheduling": _refused("call the models one after the other"),
    "instance_group.name": _implemented("a comment"),
    "instance_group.kind": _implemented(
        "KIND_AUTO, KIND_CPU, KIND_GPU; KIND_MODEL is taken as KIND_AUTO, with a warning"
    ),
    "instance_group.count": _implemented("instances, for each GPU where there are several; left out: 1"),
    "instance_group.rate_limiter": _ignored("instances run whenever there is a batch, as without --rate-limit"),
    "instance_group.gpus": _implemented("left out: all that the worker has"),
    "instance_group.secondary_devices": _ignored("the model runs on the device of its kind alone"),
    "instance_group.profile": _ignored("the backend takes the optimization profile that fits the batch"),
    "instance_group.passive": _implemented("a passive group has no instances; one group must have some"),
    "instance_group.host_policy": _ignored("threads and memory are the operating system's to place"),
    "default_model_filename": _implemented("a path inside the version's directory"),
    "cc_model_filenames": _ignored("one file serves every GPU: the default one"),
    "metric_tags": _implemented("labels of the model's metrics"),
    "parameters.string_value": _implemented("see the settings of tidegate; others go to the backend"),
    "model_warmup.name": _implemented("names the sample in errors"),
    "model_warmup.batch_size": _implemented("the sample is repeated to this many rows"),
    "model_warmup.inputs.data_type": _implemented("the input's own"),
    "model_warmup.inputs.dims": _implemented("the input's, with a size for each -1"),
    "model_warmup.inputs.zero_data": _implemented("zeros, and empty strings"),
    "model_warmup.inputs.random_data": _implemented("random numbers; empty strings for TYPE_STRING"),
    "model_warmup.inputs.input_data_file": _implemented("a file in the model's directory warmup/, one row of raw data"),
    "model_warmup.count": _implemented("0: once"),
    "model_operations": _refused("build the operators into the model, or use the python backend"),
    "model_transaction_policy.decoupled": _refused("give one response for each request"),
    "model_repository_agents": _refused("put the files in the repository as the model needs them"),
    "response_cache": _ignored("every request is computed"),
    "model_metrics": _ignored("histograms have the buckets of tidegate; checked as Triton does"),
}


_CHOICES = ("sequence_batching", "ensemble_scheduling")  # of a scheduler: being there says something, even when empty
_KIND_MODEL = 3  # ModelInstanceGroup.Kind
_SHOWN_CHARS = 60


def set_fields(message: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of every field that is set to something, down to where the table decides.

    A field without a decision comes as its leaf.
    """
    for field, value in message.ListFields():
        path = prefix + field.name
        entry = field.message_type
        is_map = entry is not None and entry.GetOptions().map_entry
        if path in FIELDS or entry is None or (is_map and entry.fields_by_name["value"].message_type is None):
            yield path, value
        else:
            for part in value.values() if is_map else [value] if hasattr(value, "ListFields") else value:
                yield from set_fields(part, path + ".")


def refused_faults(message: Any) -> Iterator[ConfigFault]:
    """Every refused field that is set, once each: without it, answers would be wrong."""
    for path, value in dict(set_fields(message)).items():
        field = FIELDS.get(path)
        if field is not None and field.decision == "refused" and not (_is_empty(value) and path not in _CHOICES):
            yield ConfigFault(path, _shown(value), "is not supported and cannot be ignored", field.note)


def ignored_fields(message: Any, *, backend: str) -> list[str]:
    """What is set and has no effect, sorted; fields that the table does not know among it."""
    ignored = set()
    for path, value in set_fields(message):
        field = FIELDS.get(path)
        is_of_onnx = path.startswith(("optimization.graph", "optimization.execution_accelerators"))
        if field is None or (field.decision == "ignored" and not _is_empty(value)):
            ignored.add(path)
        elif is_of_onnx and backend != "onnxruntime":
            ignored.add(".".join(path.split(".")[:2]))
        elif path == "instance_group.kind" and value == _KIND_MODEL:
            ignored.add("instance_group.kind: KIND_MODEL")
    batching = message.dynamic_batching
    if batching.default_priority_level and not batching.priority_levels:
        ignored.add("dynamic_batching.default_priority_level")
    return sorted(ignored)


def _is_empty(value: Any) -> bool:
    """True for a message in which nothing is switched on."""
    return hasattr(value, "ListFields") and not value.ListFields()


def _shown(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
