"""Execution providers: which of ONNX Runtime's run a model, and with what options. Pure.

The placement says CPU or GPU; `optimization.execution_accelerators` of the configuration adds to it: on the GPU
"tensorrt" and options for "cuda", on the CPU "openvino". Must not import ONNX Runtime: what the installed one can do is
told to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from workers.backends.optimization_profile import PROFILE_PARAMETERS, optimization_profile, trtexec_text
from workers.model_config import Accelerator, ModelConfig, ModelConfigError
from workers.placement import Placement

Provider = tuple[str, dict[str, str]]
Cache = Callable[[dict[str, str]], Path]  # the directory for engines that are built with these flags

CPU, CUDA, TENSORRT, OPENVINO = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt", "OpenVINO"))
_REMEDY = {
    CUDA: "install onnxruntime-gpu in place of onnxruntime (pip install 'tidegate[gpu]'), or use KIND_CPU",
    TENSORRT: "install onnxruntime-gpu and TensorRT, or leave the accelerator out",
    OPENVINO: "install onnxruntime-openvino in place of onnxruntime, or leave the accelerator out",
}
_PRECISIONS: dict[str, dict[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "BF16": {"trt_bf16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
# Triton's names that differ from ONNX Runtime's; "trt_..." is passed on as it is.
_TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_BOOLEANS = {"1": "1", "true": "1", "on": "1", "0": "0", "false": "0", "off": "0"}
_CACHE_ENABLE, _CACHE_PATH = "trt_engine_cache_enable", "trt_engine_cache_path"
_PROFILE_PREFIX = "trt_profile_"


def execution_providers(
    config: ModelConfig, placement: Placement, available: Sequence[str], cache: Cache
) -> list[Provider]:
    """The providers in order of preference, each with its options; the CPU always comes last.

    `cache` is asked for the directory of TensorRT's engines, which are kept unless trt_engine_cache_enable says "false"
    or trt_engine_cache_path another place. Raises ModelConfigError for an accelerator or a parameter that is unknown,
    and for a provider that the installed ONNX Runtime lacks.
    """
    providers = _on_gpu(config, placement.gpu, cache) if placement.kind == "gpu" else _on_cpu(config)
    for name, _ in providers:
        if name not in available:
            raise ModelConfigError(
                f"model {config.name!r} is to run with ONNX Runtime's {name}, which the installed one does not have; "
                f"it has {', '.join(available)}",
                field="instance_group.kind" if name == CUDA else "optimization.execution_accelerators",
                value=name,
                remedy=_REMEDY[name],
            )
    return [*providers, (CPU, {})]


def _on_cpu(config: ModelConfig) -> list[Provider]:
    providers: list[Provider] = []
    for accelerator in config.cpu_accelerators:
        if accelerator.name != "openvino":
            raise _unknown(config, "cpu", accelerator, "openvino")
        providers.append((OPENVINO, {"device_type": "CPU"} | accelerator.parameters))
    return providers


def _on_gpu(config: ModelConfig, gpu: int, cache: Cache) -> list[Provider]:
    # What grows by powers of two takes up to twice the memory, which other models could have.
    cuda = {"arena_extend_strategy": "kSameAsRequested", "device_id": str(gpu)}
    providers: list[Provider] = []
    for accelerator in config.gpu_accelerators:
        if accelerator.name == "tensorrt":
            providers.append((TENSORRT, _tensorrt_options(config, accelerator, gpu, cache)))
        elif accelerator.name == "cuda":
            cuda = cuda | accelerator.parameters | {"device_id": str(gpu)}
        else:
            raise _unknown(config, "gpu", accelerator, "tensorrt, cuda")
    return [*providers, (CUDA, cuda)]


def _tensorrt_options(config: ModelConfig, accelerator: Accelerator, gpu: int, cache: Cache) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in accelerator.parameters.items():
        if name == "precision_mode":
            if value.upper() not in _PRECISIONS:
                raise _bad_parameter(config, name, value, f"use one of {', '.join(_PRECISIONS)}")
            options |= _PRECISIONS[value.upper()]
        elif name == _CACHE_ENABLE:
            if value.lower() not in _BOOLEANS:
                raise _bad_parameter(config, name, value, 'use "true" or "false"')
            options[name] = _BOOLEANS[value.lower()]
        elif name in _TENSORRT_NAMES or name.startswith("trt_"):
            options[_TENSORRT_NAMES.get(name, name)] = value
        else:
            known = ", ".join(["precision_mode", *_TENSORRT_NAMES])
            raise _bad_parameter(config, name, value, f"use {known}, or an option of the provider: trt_...")
    if not any(name.startswith(_PROFILE_PREFIX) for name in options):
        options |= _profile_options(config)
    options.setdefault(_CACHE_ENABLE, "1")
    if options[_CACHE_ENABLE] == "1" and _CACHE_PATH not in options:
        directory = str(cache(dict(options)))
        options |= {_CACHE_PATH: directory, "trt_timing_cache_enable": "1", "trt_timing_cache_path": directory}
    return options | {"device_id": str(gpu)}


def _profile_options(config: ModelConfig) -> dict[str, str]:
    """The shapes that the configuration's parameters name, if they do.

    Without them the provider learns the range of shapes as requests arrive, and builds anew whenever one is outside:
    warm-up samples of the smallest and the largest batch say it all before a model is ready. What follows from
    max_batch_size alone is not set here, as the provider then refuses models of which it can run only parts.
    """
    if not any(parameter in config.parameters for parameter in PROFILE_PARAMETERS):
        return {}
    profile = optimization_profile(config)
    return {
        f"{_PROFILE_PREFIX}{which}_shapes": trtexec_text({name: getattr(profile[name], which) for name in profile})
        for which in ("min", "opt", "max")
    }


def _unknown(config: ModelConfig, kind: str, accelerator: Accelerator, known: str) -> ModelConfigError:
    return ModelConfigError(
        f"model {config.name!r} asks for the {kind} accelerator {accelerator.name!r}, which is unknown",
        field=f"optimization.execution_accelerators.{kind}_execution_accelerator.name",
        value=accelerator.name,
        remedy=f"use {known}, or leave it out",
    )


def _bad_parameter(config: ModelConfig, name: str, value: str, remedy: str) -> ModelConfigError:
    return ModelConfigError(
        f"the accelerator tensorrt of model {config.name!r} has the parameter {name!r}: {value!r}",
        field=f"optimization.execution_accelerators.gpu_execution_accelerator.parameters.{name}",
        value=value,
        remedy=remedy,
    )
