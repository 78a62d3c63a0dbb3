"""What is wrong with a configuration message by itself, fault by fault: Triton's checks of a model, and some of ours.

Must not know the model's files. Whether fields fit each other is for ModelConfig.faults, where the values are ours.
Messages are Any: protobuf publishes no types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from workers.config_error import ConfigFault
from workers.config_fields import refused_faults
from workers.config_parameters import parameter_faults
from workers.config_tensors import datatype_faults, path_faults, size_faults, tensor_faults
from workers.model_config import BACKENDS

BACKEND_OF_PLATFORM = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorrt_plan": "tensorrt",
}
# What the onnxruntime backend can be asked for.
GPU_ACCELERATORS = ("tensorrt", "cuda")
CPU_ACCELERATORS = ("openvino",)
_GPU_ONLY_BACKENDS = ("tensorrt",)
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")  # Prometheus' rule
_MODULE = re.compile(r"[^\W\d]\w*\.py")
_OWN_LABELS = ("model", "version")
_KIND_GPU, _KIND_CPU, _KIND_MODEL = 1, 2, 3  # ModelInstanceGroup.Kind
_DELAY = 1  # ModelQueuePolicy.TimeoutAction


def message_faults(message: Any, *, model: str, backend: str) -> Iterator[ConfigFault]:
    """Everything that is wrong with the configuration of `model`; `backend` is the one that was chosen for it."""
    yield from _identity_faults(message, model, backend)
    if message.max_batch_size < 0:
        yield ConfigFault("max_batch_size", message.max_batch_size, "is negative", "use 0 for no batch dimension")
    yield from _version_faults(message.version_policy)
    yield from tensor_faults(message.input, "input")
    yield from tensor_faults(message.output, "output")
    yield from _batching_faults(message.dynamic_batching)
    yield from _instance_faults(message.instance_group, backend)
    yield from _warm_up_faults(message.model_warmup)
    if backend == "onnxruntime":
        yield from _accelerator_faults(message.optimization.execution_accelerators)
    yield from path_faults("default_model_filename", message.default_model_filename)
    if backend == "python" and not _MODULE.fullmatch(message.default_model_filename or "model.py"):
        what = "is no Python module in the version's own directory"
        yield ConfigFault("default_model_filename", message.default_model_filename, what, "give one such as model.py")
    yield from _tag_faults(message.metric_tags)
    yield from parameter_faults({key: value.string_value for key, value in message.parameters.items()}, backend=backend)
    yield from _metric_faults(message)
    yield from refused_faults(message)


def _identity_faults(message: Any, model: str, backend: str) -> Iterator[ConfigFault]:
    if message.name and message.name != model:
        remedy = f"name it {model!r}, or leave name out"
        yield ConfigFault("name", message.name, "differs from its directory's", remedy)
    known = ", ".join(BACKEND_OF_PLATFORM)
    platform = message.platform
    if platform == "ensemble":
        yield ConfigFault("platform", platform, "is not supported", "call the models one after the other")
    elif platform and message.backend and BACKEND_OF_PLATFORM.get(platform, platform) != message.backend:
        yield ConfigFault("platform", platform, f"contradicts backend {message.backend!r}", "leave platform out")
    elif platform and backend not in BACKENDS:
        yield ConfigFault("platform", platform, "is unknown", f"give backend, or one of {known}")
    elif backend not in BACKENDS:
        what = "is not one of those here" if backend else "is missing: no backend follows from the names of the files"
        yield ConfigFault("backend", backend, what, f"use one of {', '.join(BACKENDS)}")
    if message.runtime and ("/" in message.runtime or "\\" in message.runtime or message.runtime in (".", "..")):
        yield ConfigFault("runtime", message.runtime, "is a path, not a file's name", "leave it out")


def _version_faults(policy: Any) -> Iterator[ConfigFault]:
    if policy.WhichOneof("policy_choice") != "specific":
        return
    field = "version_policy.specific.versions"
    versions = list(policy.specific.versions)
    if not versions:
        yield ConfigFault(field, "", "is missing", "name the versions to serve, or use latest or all")
    elif min(versions) < 1:
        yield ConfigFault(field, versions, "has a number below 1", "versions are numbered from 1")


def _batching_faults(batching: Any) -> Iterator[ConfigFault]:
    path = "dynamic_batching"
    levels = batching.priority_levels
    if levels and not 1 <= batching.default_priority_level <= levels:
        field = f"{path}.default_priority_level"
        yield ConfigFault(field, batching.default_priority_level, "is no level", f"give one of 1 to {levels}")
    policies = {f"{path}.default_queue_policy": batching.default_queue_policy}
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies[f"{path}.priority_queue_policy.{level}"] = policy
        if not 1 <= level <= levels:
            remedy = f"give levels from 1 to {levels}" if levels else "set priority_levels"
            yield ConfigFault(f"{path}.priority_queue_policy", level, "is no level of priority_levels", remedy)
    for field, policy in policies.items():
        if policy.timeout_action not in policy.TimeoutAction.values():
            yield ConfigFault(f"{field}.timeout_action", policy.timeout_action, "is none", "give REJECT or DELAY")
    if batching.preserve_ordering:
        yield from _ordering_faults(policies, levels)


def _ordering_faults(policies: dict[str, Any], levels: int) -> Iterator[ConfigFault]:
    field = "dynamic_batching.preserve_ordering"
    if levels > 1:
        remedy = "have one level, or do without the order"
        yield ConfigFault(field, "true", f"cannot be with priority_levels {levels}", remedy)
    for path, policy in policies.items():
        if policy.timeout_action == _DELAY and policy.default_timeout_microseconds:
            what = f"cannot be with {path} that delays what is over its timeout"
            yield ConfigFault(field, "true", what, "use timeout_action REJECT, or do without the order or the timeout")


def _instance_faults(groups: Any, backend: str) -> Iterator[ConfigFault]:
    for group in groups:
        gpus = list(group.gpus)
        kinds = group.Kind.DESCRIPTOR.values_by_number
        kind = kinds[group.kind].name if group.kind in kinds else str(group.kind)
        if group.kind not in kinds:
            remedy = "give KIND_AUTO, KIND_CPU or KIND_GPU"
            yield ConfigFault("instance_group.kind", group.kind, "is no kind", remedy)
        if group.count < 0:
            yield ConfigFault("instance_group.count", group.count, "is negative", "give 1 or more")
        if gpus and group.kind in (_KIND_CPU, _KIND_MODEL):
            yield ConfigFault("instance_group.gpus", gpus, f"cannot be with {kind}", "use KIND_GPU, or name no gpus")
        if any(gpu < 0 for gpu in gpus):
            yield ConfigFault("instance_group.gpus", gpus, "has a negative number", "GPUs are numbered from 0")
        if group.kind == _KIND_CPU and backend in _GPU_ONLY_BACKENDS:
            what = f"is not possible: backend {backend!r} runs on GPUs only"
            yield ConfigFault("instance_group.kind", kind, what, "use KIND_GPU")
    if groups and all(group.passive for group in groups):
        what = "is set for every group, so that nothing would run"
        yield ConfigFault("instance_group.passive", "true", what, "have a group that is not passive")


def _warm_up_faults(samples: Any) -> Iterator[ConfigFault]:
    names = [sample.name for sample in samples]
    for index, sample in enumerate(samples):
        path = f"model_warmup.{sample.name or index}"
        if not sample.name:
            yield ConfigFault(f"{path}.name", "", "is missing", "name every sample")
        elif names.index(sample.name) != index:
            yield ConfigFault(f"{path}.name", sample.name, "is given twice", "name each sample once")
        for name, field in sorted(sample.inputs.items()):
            inputs = f"{path}.inputs.{name}"
            yield from datatype_faults(field, inputs)
            yield from size_faults(f"{inputs}.dims", field.dims, is_free_allowed=False)
            source = field.WhichOneof("input_data_type")
            if source is None or (source == "input_data_file" and not field.input_data_file):
                yield ConfigFault(inputs, "", "has no data", "give one of zero_data, random_data, input_data_file")
            yield from path_faults(f"{inputs}.input_data_file", field.input_data_file)


def _accelerator_faults(accelerators: Any) -> Iterator[ConfigFault]:
    for field, known in (
        ("gpu_execution_accelerator", GPU_ACCELERATORS),
        ("cpu_execution_accelerator", CPU_ACCELERATORS),
    ):
        names = [accelerator.name for accelerator in getattr(accelerators, field)]
        path = f"optimization.execution_accelerators.{field}.name"
        for index, name in enumerate(names):
            if name not in known:
                yield ConfigFault(path, name, "is unknown", f"give one of {', '.join(known)}")
            elif names.index(name) != index:
                yield ConfigFault(path, name, "is given twice", "name each accelerator once")


def _tag_faults(tags: Any) -> Iterator[ConfigFault]:
    for name in sorted(tags):
        if not _LABEL.fullmatch(name) or name in _OWN_LABELS:
            remedy = f"use letters, digits and _, no digit first, and not {' or '.join(_OWN_LABELS)}"
            yield ConfigFault("metric_tags", name, "cannot name a label of a metric", remedy)


def _metric_faults(message: Any) -> Iterator[ConfigFault]:
    if "model_metrics" not in message.DESCRIPTOR.fields_by_name:  # schemas before 2.54 have none
        return
    path = "model_metrics.metric_control"
    for control in message.model_metrics.metric_control:
        family = control.metric_identifier.family
        buckets = list(control.histogram_options.buckets)
        if not family:
            yield ConfigFault(f"{path}.metric_identifier.family", "", "is missing", "name the metric's family")
        if not buckets or buckets != sorted(set(buckets)):
            field = f"{path}.histogram_options.buckets"
            yield ConfigFault(field, buckets or "", "is no ascending list of numbers", "give bounds that ascend")
