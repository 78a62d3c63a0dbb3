"""What PyTorch's forms have beyond tests/backend_contract.py."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from tests.backend_contract import config_of, rows
from workers.backend import Backend, describe_model, open_backend
from workers.model_config import ModelConfig, ModelConfigError
from workers.placement import Placement

pytest.importorskip("torch", reason="PyTorch is not installed")


def write(directory: Path, model: str, form: str = "torchscript") -> None:
    from tests import torch_models

    if form == "torchscript":
        torch_models.write_torchscript(directory / "model.pt", model)
    else:
        torch_models.write_exported(directory / "model.pt2", model)


def load(directory: Path, config: ModelConfig, placement: Placement | None = None) -> Any:
    """The backend, as Any: these tests look into it."""
    backend: Backend = open_backend("pytorch")
    backend.load(directory, config, placement or Placement())
    return backend


def named(inputs: dict[str, str], outputs: str) -> ModelConfig:
    """Unbatched, inputs by datatype; shapes are [2], those of numbers []."""
    specs = tuple(TensorSpec(name, kind, () if kind == "INT64" else (2,)) for name, kind in inputs.items())
    gives = tuple(TensorSpec(name, "FP32", (2,)) for name in outputs.split())
    return config_of("pytorch", "identity", inputs=specs, outputs=gives, max_batch_size=0)


def test_torchscript_tells_its_arguments_and_results(tmp_path: Path) -> None:
    write(tmp_path, "add_sub")
    description = describe_model("pytorch", tmp_path)
    assert description.inputs == (TensorSpec("INPUT0", "", ()), TensorSpec("INPUT1", "", ()))
    assert description.outputs == (TensorSpec("OUTPUT__0", "", ()), TensorSpec("OUTPUT__1", "", ()))


def test_an_exported_program_tells_all(tmp_path: Path) -> None:
    write(tmp_path, "row_sum", "exported")
    description = describe_model("pytorch", tmp_path)
    assert description.inputs == (TensorSpec("INPUT0", "FP32", (-1, -1)),)
    assert description.outputs == (TensorSpec("OUTPUT__0", "FP32", (-1, 1)),)
    assert description.is_batchable


def test_a_compiled_package_tells_how_many(compiled: Path, tmp_path: Path) -> None:
    from tests.unit.test_backends import CompiledForm

    CompiledForm(compiled).write(tmp_path, "add_sub")
    description = describe_model("pytorch", tmp_path)
    assert [spec.name for spec in description.inputs] == ["INPUT__0", "INPUT__1"]
    assert [spec.name for spec in description.outputs] == ["OUTPUT__0", "OUTPUT__1"]


def test_a_compiled_package_refuses_what_it_was_not_made_for(compiled: Path, tmp_path: Path) -> None:
    from tests.unit.test_backends import CompiledForm

    CompiledForm(compiled).write(tmp_path, "add_sub")
    backend = load(tmp_path, config_of("pytorch", "add_sub"))
    wide, doubles = np.ones((2, 5), np.float32), TensorSpec("INPUT0", "FP64", (4,))
    with pytest.raises(InferenceError, match="expected: 4, but got: 5") as caught:
        backend.infer({"INPUT0": wide, "INPUT1": wide}, ())
    assert caught.value.code is ErrorCode.MODEL_FAILED
    config = config_of("pytorch", "add_sub", inputs=(doubles, TensorSpec("INPUT1", "FP32", (4,))))
    with pytest.raises(InferenceError, match="dtype"):
        load(tmp_path, config).infer({"INPUT0": rows(1).astype(np.float64), "INPUT1": rows(1)}, ())
    with pytest.raises(ModelConfigError, match="compiled"):
        load(tmp_path, config_of("pytorch", "add_sub", parameters={"autocast": "bf16"}))


def test_a_compiled_package_is_not_loaded_for_another_device(tmp_path: Path) -> None:
    from tests.unit.test_torch_signature import archive

    name = "data/aotinductor/model/a.wrapper_metadata.json"
    archive(tmp_path / "model.pt2", name, content='{"AOTI_DEVICE_KEY": "cuda"}')
    with pytest.raises(ModelConfigError, match="compiled for cuda"):
        load(tmp_path, config_of("pytorch", "add_sub"))


@pytest.mark.parametrize("inputs", [{"x": "FP32", "factor": "INT64"}, {"INPUT__0": "FP32", "INPUT__1": "INT64"}])
def test_a_number_comes_as_one_element_and_a_dict_gives_its_keys(inputs: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, "scaled")
    backend = load(tmp_path, named(inputs, "twice scaled"))
    x, factor = inputs
    batch = {x: np.array([1, 2], np.float32), factor: np.array(5)}
    outputs = backend.infer(batch, ())
    np.testing.assert_array_equal(outputs["scaled"], [5, 10])
    np.testing.assert_array_equal(outputs["twice"], [2, 4])
    with pytest.raises(InferenceError, match="one number") as caught:
        backend.infer(batch | {factor: np.array([1, 2])}, ())
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_an_argument_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    write(tmp_path, "scaled")
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(load(tmp_path, named({"x": "FP32"}, "scaled")).infer({"x": x}, ())["scaled"], x)


def test_a_dict_without_the_configured_output_fails_the_batch(tmp_path: Path) -> None:
    write(tmp_path, "scaled")
    with pytest.raises(InferenceError, match="scaled, twice"):
        load(tmp_path, named({"x": "FP32"}, "other")).infer({"x": np.zeros(2, np.float32)}, ())


def test_a_named_tuple_gives_its_fields(tmp_path: Path) -> None:
    write(tmp_path, "named")
    x = np.array([1, 2], np.float32)
    outputs = load(tmp_path, named({"x": "FP32"}, "second first")).infer({"x": x}, ())
    np.testing.assert_array_equal(outputs["second"], -x)
    np.testing.assert_array_equal(outputs["first"], x)


def test_state_and_weights_that_a_model_gives_away_stay_its_own(tmp_path: Path) -> None:
    write(tmp_path, "counter")
    one, other = (load(tmp_path, named({"x": "FP32"}, "calls weight")) for _ in range(2))
    x = np.zeros(2, np.float32)
    first = one.infer({"x": x}, ())
    first["weight"][:] = 7
    second = one.infer({"x": x}, ())
    assert (first["calls"][0], second["calls"][0]) == (1, 2)
    np.testing.assert_array_equal(second["weight"], [1, 1])
    assert other.infer({"x": x}, ())["calls"][0] == 1


@pytest.mark.parametrize("form", ["torchscript", "exported"])
@pytest.mark.parametrize("autocast", ["bf16", "fp16"])
def test_autocast_computes_in_the_half_type_and_gives_the_configured_one(
    form: str, autocast: str, tmp_path: Path
) -> None:
    write(tmp_path, "linear", form)
    x = np.ones((1, 4), np.float32)
    exact = load(tmp_path, config_of("pytorch", "linear")).infer({"INPUT0": x}, ())["OUTPUT0"]
    config = config_of("pytorch", "linear", parameters={"autocast": autocast})
    output = load(tmp_path, config).infer({"INPUT0": x}, ())["OUTPUT0"]
    assert output.dtype == np.float32
    assert not np.array_equal(output, exact)
    np.testing.assert_allclose(output, exact, rtol=1e-2)


def test_an_unknown_autocast_and_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "identity")
    with pytest.raises(ModelConfigError, match="fp32") as caught:
        load(tmp_path, config_of("pytorch", "identity", parameters={"autocast": "fp32"}))
    assert "fp16 or bf16" in caught.value.remedy
    with pytest.raises(ModelConfigError, match="BYTES"):
        load(tmp_path, config_of("pytorch", "identity", "BYTES"))


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "identity")
    with pytest.raises(ModelConfigError, match="GPU 99"):
        load(tmp_path, config_of("pytorch", "identity"), Placement("gpu", 99))


def test_an_exported_programs_datatypes_and_shapes_must_agree(tmp_path: Path) -> None:
    write(tmp_path, "identity", "exported")
    with pytest.raises(ModelConfigError, match="FP32"):
        load(tmp_path, config_of("pytorch", "identity", "FP64"))
    wide = TensorSpec("INPUT0", "FP32", (5,))
    with pytest.raises(ModelConfigError, match="shape"):
        load(tmp_path, config_of("pytorch", "identity", inputs=(wide,)))


def test_instances_have_thread_counts_of_their_own(tmp_path: Path) -> None:
    import torch

    write(tmp_path, "identity")
    loaded = threading.Barrier(3)
    counts: dict[int, int] = {}

    def work(threads: int) -> None:
        load(tmp_path, config_of("pytorch", "identity"), Placement("cpu", 0, threads))
        loaded.wait()  # the last one to be told decides for all, where the number is the process's
        counts[threads] = torch.get_num_threads()

    workers = [threading.Thread(target=work, args=(threads,)) for threads in (1, 2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counts == {1: 1, 2: 2, 3: 3}


def test_unload_frees_an_exported_programs_weights_at_once(tmp_path: Path) -> None:
    write(tmp_path, "linear", "exported")
    backend = load(tmp_path, config_of("pytorch", "linear"))
    gc.disable()
    try:
        weights = weakref.ref(backend._program.call.weight)
        assert weights() is not None
        backend.unload()
        assert weights() is None
    finally:
        gc.enable()
