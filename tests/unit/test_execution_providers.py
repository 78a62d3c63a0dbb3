from pathlib import Path

import pytest

from schemas.model import TensorSpec
from workers.backends.execution_providers import CPU, CUDA, OPENVINO, TENSORRT, Provider, execution_providers
from workers.model_config import Accelerator, ModelConfig, ModelConfigError
from workers.placement import Placement

_ON_GPU = Placement("gpu", 3)
_INPUT = TensorSpec("x", "FP32", (3, 224))


def providers(
    *accelerators: Accelerator,
    placement: Placement = _ON_GPU,
    available: tuple[str, ...] = (TENSORRT, CUDA, OPENVINO, CPU),
    asked: list[dict[str, str]] | None = None,
    parameters: dict[str, str] | None = None,
) -> list[Provider]:
    def cache(flags: dict[str, str]) -> Path:
        if asked is not None:
            asked.append(flags)
        return Path("/engines/abc")

    config = ModelConfig(
        "m",
        "onnxruntime",
        max_batch_size=8,
        inputs=(_INPUT,),
        parameters=parameters or {},
        gpu_accelerators=accelerators if placement.kind == "gpu" else (),
        cpu_accelerators=accelerators if placement.kind == "cpu" else (),
    )
    return execution_providers(config, placement, available, cache)


def test_on_the_cpu_there_is_the_cpu_only() -> None:
    assert providers(placement=Placement("cpu", 0, 2), available=(CPU,)) == [(CPU, {})]


def test_on_a_gpu_cuda_comes_first_on_the_placements_device() -> None:
    (cuda, options), cpu = providers()
    assert cuda == CUDA
    assert options["device_id"] == "3"
    assert cpu == (CPU, {})


def test_the_cuda_accelerator_gives_options_and_cannot_move_the_instance() -> None:
    ((_, options), _) = providers(Accelerator("cuda", {"gpu_mem_limit": "1000", "device_id": "7"}))
    assert options["gpu_mem_limit"] == "1000"
    assert options["device_id"] == "3"


def test_tensorrt_comes_before_cuda_with_tritons_parameters_in_onnx_runtimes_words() -> None:
    parameters = {
        "precision_mode": "fp16",
        "max_workspace_size_bytes": "1073741824",
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": "/mine",
        "trt_builder_optimization_level": "5",
    }
    (name, options), (second, _), _ = providers(Accelerator("tensorrt", parameters))
    assert (name, second) == (TENSORRT, CUDA)
    assert options == {
        "device_id": "3",
        "trt_fp16_enable": "1",
        "trt_max_workspace_size": "1073741824",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/mine",
        "trt_builder_optimization_level": "5",
    }


def test_engines_are_kept_unless_told_otherwise_in_a_place_for_these_flags() -> None:
    asked: list[dict[str, str]] = []
    ((_, options), *_) = providers(Accelerator("tensorrt", {"precision_mode": "INT8"}), asked=asked)
    assert asked == [{"trt_int8_enable": "1", "trt_engine_cache_enable": "1"}]
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == "/engines/abc"
    ((_, options), *_) = providers(Accelerator("tensorrt", {"trt_engine_cache_enable": "false"}), asked=asked)
    assert options == {"trt_engine_cache_enable": "0", "device_id": "3"}
    assert len(asked) == 1


def test_configured_shapes_become_the_engines_profile() -> None:
    shapes = {f"profile_{which}_shapes": f"x:{rows}x3x224" for which, rows in (("min", 1), ("opt", 4), ("max", 8))}
    ((_, options), *_) = providers(Accelerator("tensorrt"), parameters=shapes)
    assert options["trt_profile_min_shapes"] == "x:1x3x224"
    assert options["trt_profile_opt_shapes"] == "x:4x3x224"
    assert options["trt_profile_max_shapes"] == "x:8x3x224"
    ((_, options), *_) = providers(Accelerator("tensorrt", {"trt_profile_min_shapes": "y:1"}), parameters=shapes)
    assert options["trt_profile_min_shapes"] == "y:1"


@pytest.mark.parametrize(
    ("accelerator", "field"),
    [
        (Accelerator("tensorflow"), "name"),
        (Accelerator("tensorrt", {"precision_mode": "FP4"}), "precision_mode"),
        (Accelerator("tensorrt", {"trt_engine_cache_enable": "maybe"}), "trt_engine_cache_enable"),
        (Accelerator("tensorrt", {"max_cached_engines": "3"}), "max_cached_engines"),
    ],
)
def test_what_is_unknown_is_refused_with_its_field(accelerator: Accelerator, field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        providers(accelerator)
    assert caught.value.field.endswith(field)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("placement", "accelerators", "available", "remedy"),
    [
        (_ON_GPU, (), (CPU,), "onnxruntime-gpu"),
        (_ON_GPU, (Accelerator("tensorrt"),), (CUDA, CPU), "TensorRT"),
        (Placement(), (Accelerator("openvino"),), (CPU,), "onnxruntime-openvino"),
    ],
)
def test_a_provider_that_is_not_installed_is_refused_with_what_to_install(
    placement: Placement, accelerators: tuple[Accelerator, ...], available: tuple[str, ...], remedy: str
) -> None:
    with pytest.raises(ModelConfigError, match="does not have") as caught:
        providers(*accelerators, placement=placement, available=available)
    assert remedy in caught.value.remedy


def test_openvino_runs_on_the_cpu_where_it_is_installed() -> None:
    found = providers(Accelerator("openvino", {"num_streams": "1"}), placement=Placement())
    assert found == [(OPENVINO, {"device_type": "CPU", "num_streams": "1"}), (CPU, {})]
    with pytest.raises(ModelConfigError, match="unknown"):
        providers(Accelerator("tensorrt"), placement=Placement())
