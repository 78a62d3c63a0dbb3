from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from tests import models
from workers.backend import Array, Backend, describe_model, open_backend
from workers.config_pbtxt import read_config
from workers.devices import gpus
from workers.model_config import ModelConfig, ModelConfigError
from workers.placement import Placement


def load(directory: Path, text: str = "") -> Backend:
    config = configure(directory, text)
    backend = open_backend("onnxruntime")
    backend.load(directory, config)
    backend.warm_up()
    return backend


def configure(directory: Path, text: str = "") -> ModelConfig:
    config = read_config(text, model="m", files=["model.onnx"])
    return config.completed(describe_model("onnxruntime", directory, filename=config.default_model_filename))


def objects(rows: list[list[bytes]]) -> Array:
    array = np.empty((len(rows), len(rows[0])), dtype=object)
    array[:] = rows
    return array


def test_identity_of_bytes_gives_bytes(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.identity("BYTES", ("batch", 2))))
    x = objects([[b"", "grüße".encode()], [b"a\x00b\x00", b"x" * 1000]])
    output = backend.infer({"INPUT0": x}, ("OUTPUT0",))["OUTPUT0"]
    assert output.dtype == object
    assert output.tolist() == x.tolist()


def test_bytes_that_are_not_utf8_are_the_callers_fault(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.identity("BYTES", ("batch", 2))))
    with pytest.raises(InferenceError, match="not UTF-8") as caught:
        backend.infer({"INPUT0": objects([[b"fine", b"\xff\xfe"]])}, ())
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.field == "inputs.INPUT0.data"


def test_bf16_goes_in_and_out_as_bits_beside_other_datatypes(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.casts()))
    bits = np.array([[0x3F80, 0x4000], [0xC0A0, 0x0000]], dtype=np.uint16)  # 1, 2, -5, 0
    bits.flags.writeable = False
    outputs = backend.infer({"INPUT0": bits}, ())
    assert outputs["OUTPUT0"].dtype == np.uint16
    np.testing.assert_array_equal(outputs["OUTPUT0"], bits)
    np.testing.assert_array_equal(outputs["WIDE"], [[1.0, 2.0], [-5.0, 0.0]])
    assert [float(item) for item in outputs["TEXT"].ravel()] == [1.0, 2.0, -5.0, 0.0]
    assert isinstance(outputs["TEXT"][0, 0], bytes)
    assert backend.infer({"INPUT0": np.zeros((0, 2), np.uint16)}, ("OUTPUT0",))["OUTPUT0"].shape == (0, 2)


def test_text_beside_bf16_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="BF16"):
        load(models.write_model(tmp_path, "m", models.text_to_bfloat16()))


def test_any_length_where_the_model_has_a_free_dimension(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.row_sum())
    assert configure(directory).inputs == (TensorSpec("INPUT0", "FP32", (-1,)),)
    backend = load(directory)
    for length in (1, 7, 0):
        output = backend.infer({"INPUT0": np.ones((2, length), dtype=np.float32)}, ("OUTPUT0",))["OUTPUT0"]
        np.testing.assert_array_equal(output, [[length], [length]])


def test_a_model_without_free_first_dimension_is_not_batched(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity("INT64", (3,)))
    assert configure(directory).max_batch_size == 0


def test_describe_tells_names_datatypes_and_free_dimensions(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.picks(("batch", "length")))
    description = describe_model("onnxruntime", directory)
    assert description.inputs == (TensorSpec("INPUT0", "FP32", (-1, -1)), TensorSpec("INDEX", "INT64", (-1, -1)))
    assert description.outputs == (TensorSpec("OUTPUT0", "FP32", (-1, -1)),)
    assert description.is_batchable


def test_a_damaged_file_fails_to_load_with_its_cause(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity())
    (directory / "model.onnx").write_bytes((directory / "model.onnx").read_bytes()[:40])
    with pytest.raises(InferenceError, match="cannot load") as caught:
        describe_model("onnxruntime", directory)
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    assert caught.value.__cause__ is not None


def test_the_configured_file_name_is_used_and_may_be_a_directory(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity())
    (directory / "net.onnx").mkdir()
    (directory / "model.onnx").rename(directory / "net.onnx" / "net.onnx")
    assert load(directory, 'default_model_filename: "net.onnx"').infer({"INPUT0": np.ones((1, 4), np.float32)}, ())


def test_configuration_that_differs_from_the_file_fails_to_load(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity())
    text = 'max_batch_size: 2 input { name: "INPUT0" data_type: TYPE_INT8 dims: 4 }'
    with pytest.raises(ModelConfigError, match="INT8"):
        load(directory, text)


def test_an_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(ModelConfigError) as caught:
        open_backend("../evil")
    assert "onnxruntime" in caught.value.remedy


def test_the_graph_is_optimised_as_far_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    levels = []
    opened = onnxruntime.InferenceSession

    def record(file: str, options: onnxruntime.SessionOptions, **others: object) -> object:
        levels.append((options.graph_optimization_level.name, options.intra_op_num_threads))
        return opened(file, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", record)
    directory = models.write_model(tmp_path, "m", models.identity())
    for level in (0, -1, 1, 2):
        config = msgspec.structs.replace(configure(directory), graph_level=level)
        open_backend("onnxruntime").load(directory, config, Placement("cpu", 0, 3))
    assert [name for name, threads in levels if threads == 3] == [
        "ORT_ENABLE_ALL",
        "ORT_ENABLE_BASIC",
        "ORT_ENABLE_EXTENDED",
        "ORT_DISABLE_ALL",
    ]


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU: the error is another one")
def test_a_gpu_is_refused_where_the_library_has_none(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity())
    with pytest.raises(ModelConfigError, match="CUDAExecutionProvider") as caught:
        open_backend("onnxruntime").load(directory, configure(directory), Placement("gpu", 0))
    assert "onnxruntime-gpu" in caught.value.remedy


def test_bound_inputs_and_outputs_give_what_a_plain_run_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The way through a GPU's memory, here with the host's in its place: the calls are the same.
    backend: Any = load(models.write_model(tmp_path, "m", models.add_sub()))
    monkeypatch.setattr("workers.backends.onnxruntime._GPU", "cpu")
    backend._placement = Placement("gpu", 0)
    for start, count in ((0, 3), (5, 3), (7, 1), (9, 0), (1, 3)):
        x = np.arange(start, start + 4 * count, dtype=np.float32).reshape(count, 4)
        outputs = backend.infer({"INPUT0": x.copy(), "INPUT1": np.asfortranarray(x)}, ("OUTPUT1", "OUTPUT0"))
        np.testing.assert_array_equal(outputs["OUTPUT0"], x * 2)
        np.testing.assert_array_equal(outputs["OUTPUT1"], x * 0)
