"""The tensorrt backend's own part, on a stand-in; on real ones it is run by tests/unit/test_backends.py, marked gpu."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from tests.backend_contract import MAX_BATCH_SIZE, config_of, rows
from tests.fake_tensorrt import Runtime, TensorRt
from workers.backend import Backend, OutOfMemory, describe_model, open_backend
from workers.devices import Gpu
from workers.model_config import ModelConfig, ModelConfigError
from workers.placement import Placement

_GPU = Placement("gpu", 0)
_CONFIG = config_of("tensorrt", "add_sub")
_PLAN = json.dumps({"profile": {name: [[1, 4], [8, 4], [8, 4]] for name in ("INPUT0", "INPUT1")}}).encode()


def use(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> TensorRt:
    library = TensorRt(runtime)
    bindings = ModuleType("cuda.bindings")
    monkeypatch.setattr(bindings, "runtime", runtime, raising=False)
    monkeypatch.setitem(sys.modules, "tensorrt", library)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)
    gpu = Gpu("NVIDIA H200", "9.0", "580.65.06, CUDA 13.0")
    monkeypatch.setattr("workers.backends.tensorrt_engine.describe_gpu", lambda _: gpu)
    return library


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, runtime: Runtime, tmp_path: Path) -> TensorRt:
    monkeypatch.setenv("TIDEGATE_ENGINE_CACHE", str(tmp_path / "engines"))
    return use(monkeypatch, runtime)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "1"
    directory.mkdir()
    return directory


def load(version: Path, config: ModelConfig = _CONFIG) -> Backend:
    backend = open_backend("tensorrt")
    backend.load(version, config, _GPU)
    backend.warm_up()
    return backend


def test_without_the_library_it_is_said_what_to_install(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(InferenceError, match="TensorRT is not installed") as caught:
        load(version)
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    assert "tidegate[tensorrt]" in caught.value.remedy


def test_without_a_gpu_it_is_refused(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Runtime(devices=0))
    with pytest.raises(InferenceError, match=r"needs a GPU.*cudaErrorNoDevice"):
        load(version)


@pytest.mark.usefixtures("library")
def test_on_the_cpu_it_is_refused(version: Path) -> None:
    with pytest.raises(ModelConfigError, match="GPU only"):
        open_backend("tensorrt").load(version, _CONFIG, Placement())


@pytest.mark.usefixtures("library")
def test_an_engine_runs_batches_of_any_size_and_gives_its_outputs_away(version: Path) -> None:
    (version / "model.plan").write_bytes(_PLAN)
    backend = load(version)
    kept = backend.infer({"INPUT0": rows(2), "INPUT1": rows(2)}, ())
    for count in (1, MAX_BATCH_SIZE, 3):
        outputs = backend.infer({"INPUT0": rows(count), "INPUT1": np.asfortranarray(rows(count, 1))}, ("OUTPUT1",))
        np.testing.assert_array_equal(outputs["OUTPUT1"], -np.ones((count, 4)))
        assert list(outputs) == ["OUTPUT1"]
    backend.unload()
    np.testing.assert_array_equal(kept["OUTPUT0"], rows(2) * 2)


@pytest.mark.usefixtures("library")
def test_unload_gives_all_memory_back_as_a_failed_load_does(version: Path, runtime: Runtime) -> None:
    (version / "model.plan").write_bytes(_PLAN)
    backend = load(version)
    backend.infer({"INPUT0": rows(8), "INPUT1": rows(8)}, ())
    assert runtime.live
    assert runtime.streams
    backend.unload()
    backend.unload()
    wrong = config_of("tensorrt", "add_sub", inputs=(TensorSpec("INPUT0", "INT8", (4,)),))
    with pytest.raises(ModelConfigError):
        load(version, wrong)
    assert not runtime.live
    assert not runtime.streams


@pytest.mark.usefixtures("library")
def test_a_batch_outside_of_the_profile_fails_with_tensorrts_words_and_the_next_one_runs(version: Path) -> None:
    (version / "model.plan").write_bytes(_PLAN)
    backend = load(version)
    with pytest.raises(InferenceError, match="is not within") as caught:
        backend.infer({"INPUT0": rows(9), "INPUT1": rows(9)}, ())
    assert caught.value.code is ErrorCode.MODEL_FAILED
    with pytest.raises(InferenceError, match="a kernel failed"):
        backend.infer({"INPUT0": rows(1) * np.float32("nan"), "INPUT1": rows(1)}, ())
    assert backend.infer({"INPUT0": rows(1), "INPUT1": rows(1)}, ())


def test_no_memory_on_the_gpu_is_told_apart(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(limit_bytes=3 * 16)
    use(monkeypatch, runtime)
    (version / "model.plan").write_bytes(_PLAN)
    backend = load(version)
    with pytest.raises(OutOfMemory, match="cudaErrorMemoryAllocation"):
        backend.infer({"INPUT0": rows(4), "INPUT1": rows(4)}, ())
    outputs = backend.infer({"INPUT0": rows(3), "INPUT1": rows(3)}, ())
    np.testing.assert_array_equal(outputs["OUTPUT0"], rows(3) * 2)
    backend.unload()
    assert not runtime.live


@pytest.mark.usefixtures("library")
def test_an_engine_of_another_kind_is_refused_with_tensorrts_words(version: Path) -> None:
    (version / "model.plan").write_bytes(b"for another GPU")
    with pytest.raises(InferenceError, match="magic tag") as caught:
        load(version)
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED


def test_an_onnx_model_is_built_once_and_kept_with_its_profile(version: Path, library: TensorRt) -> None:
    (version / "model.onnx").write_bytes(b"onnx")
    config = config_of("tensorrt", "add_sub", parameters={"max_workspace_size_bytes": "4096"})
    for _ in range(2):
        outputs = load(version, config).infer({"INPUT0": rows(8), "INPUT1": rows(8)}, ())
        np.testing.assert_array_equal(outputs["OUTPUT0"], rows(8) * 2)
    (build,) = library.builds
    assert build.limits == {"workspace": 4096}
    assert build.profiles[0].shapes["INPUT1"] == ((1, 4), (8, 4), (8, 4))
    (version / "model.onnx").write_bytes(b"another model")
    load(version, config)
    assert len(library.builds) == 2


def test_a_kept_engine_that_is_of_no_use_is_built_anew(version: Path, library: TensorRt, tmp_path: Path) -> None:
    (version / "model.onnx").write_bytes(b"onnx")
    load(version)
    (kept,) = (tmp_path / "engines").glob("*/engine.plan")
    kept.write_bytes(b"damaged")
    load(version)
    assert len(library.builds) == 2
    assert kept.read_bytes() != b"damaged"


@pytest.mark.usefixtures("library")
def test_an_onnx_file_that_cannot_be_read_is_refused(version: Path) -> None:
    (version / "model.onnx").write_bytes(b"!")
    with pytest.raises(InferenceError, match="no ONNX"):
        load(version)


@pytest.mark.usefixtures("library")
def test_the_engine_describes_itself(version: Path) -> None:
    (version / "model.plan").write_bytes(_PLAN)
    description = describe_model("tensorrt", version)
    assert description.inputs == tuple(TensorSpec(name, "FP32", (-1, 4)) for name in ("INPUT0", "INPUT1"))
    assert description.is_batchable


@pytest.mark.usefixtures("library")
def test_a_shape_tensor_is_refused(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (version / "model.plan").write_bytes(_PLAN)
    monkeypatch.setattr(TensorRt, "TensorLocation", SimpleNamespace(DEVICE="another"))
    with pytest.raises(ModelConfigError, match="shape tensor"):
        load(version)
