"""Placement: where an instance of a model runs, and with how many threads. Pure.

Must not know any ML library, nor how the GPUs of a machine are found (workers/devices.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from workers.model_config import InstanceGroup, ModelConfig, ModelConfigError

_THREADS_PARAMETER = "intra_op_thread_count"
_GPU_BACKENDS = ("onnxruntime", "pytorch", "tensorrt")  # what "auto" puts on a GPU where there is one
_GPU_ONLY_BACKENDS = ("tensorrt",)


class Placement(msgspec.Struct, frozen=True):
    """One instance's device. `gpu` belongs to kind "gpu"; `threads` are those that one inference may use on the CPU."""

    kind: Literal["cpu", "gpu"] = "cpu"
    gpu: int = 0
    threads: int = 1


def placements(config: ModelConfig, *, gpus: Sequence[int], cores: int) -> tuple[Placement, ...]:
    """The placements of a model's instances, in the order of its instance groups.

    `gpus` are those of this process, `cores` what it may use. The cores are shared out among the model's CPU instances,
    at least one each, so that they do not fight; the parameter intra_op_thread_count says otherwise. Raises
    ModelConfigError for a GPU that is not there.
    """
    places: list[tuple[Literal["cpu", "gpu"], int]] = []
    for group in config.instance_groups:
        if _is_on_gpu(config.backend, group, gpus):
            places += [("gpu", gpu) for gpu in _gpus_of(config, group, gpus) for _ in range(group.count)]
        else:
            places += [("cpu", 0)] * group.count
    on_cpu = sum(1 for kind, _ in places if kind == "cpu")
    threads = _configured_threads(config) or max(1, cores // max(1, on_cpu))
    return tuple(Placement(kind, gpu, threads) for kind, gpu in places)


def _is_on_gpu(backend: str, group: InstanceGroup, gpus: Sequence[int]) -> bool:
    if group.kind == "auto":
        return backend in _GPU_ONLY_BACKENDS or (backend in _GPU_BACKENDS and bool(gpus))
    return group.kind == "gpu"


def _gpus_of(config: ModelConfig, group: InstanceGroup, gpus: Sequence[int]) -> Sequence[int]:
    missing = [gpu for gpu in group.gpus if gpu not in gpus]
    if missing or not gpus:
        raise ModelConfigError(
            f"model {config.name!r} is to run on GPU {', '.join(map(str, missing)) or 'any'}, this worker has "
            f"{', '.join(map(str, gpus)) or 'none'}",
            field="instance_group.gpus" if missing else "instance_group.kind",
            value=list(group.gpus) or group.kind,
            remedy="use KIND_CPU, name GPUs that are there, or give the worker one",
        )
    return group.gpus or gpus


def _configured_threads(config: ModelConfig) -> int:
    text = config.parameters.get(_THREADS_PARAMETER, "")
    if not text:
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise ModelConfigError(
            f"parameter {_THREADS_PARAMETER!r} of model {config.name!r} is {text!r}",
            field=f"parameters.{_THREADS_PARAMETER}",
            value=text,
            remedy="give a whole number from 1, or leave it out",
        )
    return int(text)
