from pathlib import Path

import numpy as np
import onnx
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from tests import models
from workers.backend import Array, Backend, OutOfMemory, describe_model, open_backend
from workers.config_pbtxt import read_config
from workers.model_config import ModelConfig, ModelConfigError


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


def test_a_batch_runs_and_only_the_outputs_asked_for_are_given(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.add_sub()))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    both = backend.infer({"INPUT0": x, "INPUT1": x * 2}, ())
    np.testing.assert_array_equal(both["OUTPUT0"], x * 3)
    np.testing.assert_array_equal(both["OUTPUT1"], -x)
    assert list(backend.infer({"INPUT0": x, "INPUT1": x}, ("OUTPUT1",))) == ["OUTPUT1"]


def test_read_only_views_of_record_bytes_go_in(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.add_sub()))
    record = b"!" + np.arange(8, dtype="<f4").tobytes()
    view = np.frombuffer(memoryview(record)[1:], dtype="<f4").reshape(2, 4)  # neither writable nor aligned
    outputs = backend.infer({"INPUT0": view, "INPUT1": view}, ("OUTPUT0",))
    np.testing.assert_array_equal(outputs["OUTPUT0"], np.arange(8, dtype=np.float32).reshape(2, 4) * 2)


@pytest.mark.parametrize("datatype", sorted(set(models.ONNX_TYPES) - {"BYTES", "BF16", "BOOL"}))
def test_identity_of_each_numeric_datatype(tmp_path: Path, datatype: str) -> None:
    backend = load(models.write_model(tmp_path, "m", models.identity(datatype)))
    kind, bits = datatype.rstrip("0123456789"), datatype.lstrip("FPUINT")
    x = np.array([[0, 1, 2, 100]], dtype={"FP": "float", "UINT": "uint", "INT": "int"}[kind] + bits)
    output = backend.infer({"INPUT0": x}, ("OUTPUT0",))["OUTPUT0"]
    assert output.dtype == x.dtype
    np.testing.assert_array_equal(output, x)


def test_identity_of_bool(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.identity("BOOL")))
    x = np.array([[True, False, False, True]])
    np.testing.assert_array_equal(backend.infer({"INPUT0": x}, ())["OUTPUT0"], x)


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


def test_a_model_without_batch_dimension_runs_its_exact_shape(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity("INT64", (3,)))
    assert configure(directory).max_batch_size == 0
    output = load(directory).infer({"INPUT0": np.arange(3)}, ("OUTPUT0",))["OUTPUT0"]
    np.testing.assert_array_equal(output, [0, 1, 2])


def test_describe_tells_names_datatypes_and_free_dimensions(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.picks(("batch", "length")))
    description = describe_model("onnxruntime", directory)
    assert description.inputs == (TensorSpec("INPUT0", "FP32", (-1, -1)), TensorSpec("INDEX", "INT64", (-1, -1)))
    assert description.outputs == (TensorSpec("OUTPUT0", "FP32", (-1, -1)),)
    assert description.is_batchable


def test_the_models_own_failure_is_model_failed_and_it_runs_on(tmp_path: Path) -> None:
    backend = load(models.write_model(tmp_path, "m", models.picks()))
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    with pytest.raises(InferenceError, match="the model failed") as caught:
        backend.infer({"INPUT0": x, "INDEX": np.full((1, 4), 99)}, ())
    assert caught.value.code is ErrorCode.MODEL_FAILED
    assert caught.value.__cause__ is not None
    output = backend.infer({"INPUT0": x, "INDEX": np.full((1, 4), 2)}, ())["OUTPUT0"]
    np.testing.assert_array_equal(output, np.full((1, 4), 2.0))


def test_no_memory_is_told_apart_from_other_failures(tmp_path: Path) -> None:
    # Asks ONNX Runtime for 2^46 elements.
    shape = onnx.helper.make_tensor_value_info("INPUT0", onnx.TensorProto.INT64, [1])
    huge = onnx.helper.make_tensor_value_info("OUTPUT0", onnx.TensorProto.FLOAT, [None])
    node = onnx.helper.make_node("ConstantOfShape", ["INPUT0"], ["OUTPUT0"])
    graph = onnx.helper.make_graph([node], "huge", [shape], [huge])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    backend = load(models.write_model(tmp_path, "m", model))
    with pytest.raises(OutOfMemory):
        backend.infer({"INPUT0": np.array([1 << 46])}, ())


def test_a_damaged_file_fails_to_load_with_its_cause(tmp_path: Path) -> None:
    directory = models.write_model(tmp_path, "m", models.identity())
    (directory / "model.onnx").write_bytes((directory / "model.onnx").read_bytes()[:40])
    with pytest.raises(InferenceError, match="cannot load") as caught:
        describe_model("onnxruntime", directory)
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    assert caught.value.__cause__ is not None


def test_a_missing_file_fails_to_load(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="there is no model file") as caught:
        describe_model("onnxruntime", models.write_model(tmp_path, "m", None))
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED


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


def test_unload_is_idempotent_and_may_come_first(tmp_path: Path) -> None:
    open_backend("onnxruntime").unload()
    backend = load(models.write_model(tmp_path, "m", models.identity()))
    backend.unload()
    backend.unload()


def test_an_unknown_backend_lists_the_known_ones() -> None:
    with pytest.raises(ModelConfigError) as caught:
        open_backend("../evil")
    assert "onnxruntime" in caught.value.remedy
