import pytest

from schemas.errors import InferenceError
from schemas.model import TensorSpec
from workers.config_pbtxt import read_config
from workers.model_config import DEFAULT_MAX_BATCH_SIZE, ModelConfig, ModelConfigError, ModelDescription, reshaped


def read(text: str, *, backend: str = "onnxruntime") -> ModelConfig:
    return read_config(f'backend: "{backend}" {text}', model="m")


BATCHABLE = ModelDescription(
    inputs=(TensorSpec("x", "FP32", (-1, 4)),),
    outputs=(TensorSpec("y", "FP32", (-1, 2)), TensorSpec("z", "INT64", (-1,))),
)
FIXED = ModelDescription(inputs=(TensorSpec("x", "FP32", (1, 4)),), outputs=(TensorSpec("y", "FP32", (-1, 2)),))


def test_absent_configuration_is_completed_from_a_model_that_can_be_batched() -> None:
    config = read_config("", model="m", files=["model.onnx"])
    assert not config.is_complete
    completed = config.completed(BATCHABLE)
    assert completed.is_complete
    assert completed.max_batch_size == DEFAULT_MAX_BATCH_SIZE == 32
    assert completed.inputs == (TensorSpec("x", "FP32", (4,)),)
    assert completed.outputs == (TensorSpec("y", "FP32", (2,)), TensorSpec("z", "INT64", ()))
    assert (completed.dynamic_batching, completed.max_queue_delay_us) == (True, 0)
    completed.check_agrees(BATCHABLE)


def test_absent_configuration_of_a_model_with_a_fixed_dimension_keeps_exact_shapes() -> None:
    completed = read_config("", model="m", files=["model.onnx"]).completed(FIXED)
    assert (completed.max_batch_size, completed.dynamic_batching) == (0, False)
    assert (completed.inputs, completed.outputs) == (FIXED.inputs, FIXED.outputs)
    completed.check_agrees(FIXED)


def test_what_is_configured_wins_over_the_model_file() -> None:
    completed = read("max_batch_size: 4 dynamic_batching { preferred_batch_size: 2 }").completed(BATCHABLE)
    assert (completed.max_batch_size, completed.preferred_batch_sizes) == (4, (2,))
    exact = read('input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }').completed(BATCHABLE)
    assert (exact.max_batch_size, exact.outputs[0].shape) == (0, (-1, 2))


def test_batch_size_for_a_model_that_cannot_be_batched_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="cannot be batched") as caught:
        read("max_batch_size: 4").completed(FIXED)
    assert caught.value.field == "max_batch_size"


def test_preferred_size_is_checked_against_the_completed_batch_size() -> None:
    config = read("dynamic_batching { preferred_batch_size: 33 }")
    with pytest.raises(ModelConfigError, match="33"):
        config.completed(BATCHABLE)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('input { name: "w" data_type: TYPE_FP32 dims: 4 } max_batch_size: 2', "input"),
        ('input { name: "x" data_type: TYPE_FP16 dims: 4 } max_batch_size: 2', "input.x.data_type"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 5 } max_batch_size: 2', "input.x.dims"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [1, 4] } max_batch_size: 2', "input.x.dims"),
        ('output { name: "q" data_type: TYPE_FP32 dims: 2 } max_batch_size: 2', "output.name"),
    ],
)
def test_configuration_that_differs_from_the_model_file_is_told(text: str, field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        read(text).completed(BATCHABLE).check_agrees(BATCHABLE)
    assert caught.value.field == field


def test_outputs_may_be_left_out_and_free_dimensions_agree_with_fixed_ones() -> None:
    config = read(
        'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: -1 } '
        + 'output { name: "y" data_type: TYPE_FP32 dims: 2 }'
    )
    config.check_agrees(BATCHABLE)


PARTIAL = ModelDescription(inputs=(TensorSpec("x", "", ()), TensorSpec("w", "FP32", (-1, 3))), outputs=())
Y = 'output { name: "y" data_type: TYPE_FP32 dims: 2 }'


def test_what_a_file_does_not_tell_must_be_configured() -> None:
    with pytest.raises(ModelConfigError, match="does not tell datatype and shape of input x") as caught:
        read(f"max_batch_size: 2 {Y}").completed(PARTIAL)
    assert (caught.value.field, caught.value.value) == ("input", "x")
    given = 'input { name: "x" data_type: TYPE_FP32 dims: 4 } input { name: "w" data_type: TYPE_FP32 dims: 3 }'
    with pytest.raises(ModelConfigError, match="does not tell its outputs") as caught:
        read(f"max_batch_size: 2 {given}").completed(PARTIAL)
    assert caught.value.field == "output"
    assert "name, data_type and dims" in caught.value.remedy
    with pytest.raises(ModelConfigError, match="does not tell its inputs"):
        read(f"max_batch_size: 2 {Y}").completed(ModelDescription(inputs=(), outputs=()))


def test_what_a_file_does_not_tell_is_not_compared_but_its_names_are() -> None:
    given = 'max_batch_size: 2 input { name: "x" data_type: TYPE_INT8 dims: [ 7, 7 ] }'
    with pytest.raises(ModelConfigError, match="leaves out input 'w'") as caught:
        read(f"{given} {Y}").check_agrees(PARTIAL)
    assert caught.value.field == "input"
    both = f'{given} input {{ name: "w" data_type: TYPE_FP32 dims: 3 }}'
    read(f"{both} {Y}").check_agrees(PARTIAL)
    with pytest.raises(ModelConfigError, match="no input 'q'"):
        read(f'{both} {Y} input {{ name: "q" data_type: TYPE_FP32 dims: 3 }}').check_agrees(PARTIAL)
    with pytest.raises(ModelConfigError, match=r"shape \[-1, 4\]"):
        read(f"{both.replace('dims: 3', 'dims: 4')} {Y}").check_agrees(PARTIAL)


def test_a_scalar_of_a_model_file_is_taken_as_it_is() -> None:
    rate = ModelDescription(inputs=(TensorSpec("sr", "INT64", ()),), outputs=(TensorSpec("y", "FP32", (2,)),))
    completed = read("").completed(rate)
    assert (completed.max_batch_size, completed.inputs[0].shape) == (0, ())
    with pytest.raises(ModelConfigError, match="cannot be batched"):
        read("max_batch_size: 2").completed(rate)


RESHAPED = """max_batch_size: 2
input { name: "x" data_type: TYPE_FP32 dims: 1 reshape { shape: [] } }
input { name: "w" data_type: TYPE_FP32 dims: [ -1, 6 ] reshape { shape: [ -1, 2, 3 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 2 ] } }
output { name: "z" data_type: TYPE_FP32 dims: [ 5 ] }
"""


def test_a_reshaped_tensor_agrees_with_the_shape_that_the_file_has() -> None:
    config = read(RESHAPED)
    assert [spec.shape for spec in config.inputs] == [(1,), (-1, 6)]
    assert [spec.shape for spec in config.model_inputs] == [(), (-1, 2, 3)]
    assert [spec.shape for spec in config.model_outputs] == [(2, 2), (5,)]
    file = ModelDescription(
        inputs=(TensorSpec("x", "FP32", (-1,)), TensorSpec("w", "FP32", (-1, -1, 2, 3))),
        outputs=(TensorSpec("y", "FP32", (-1, 2, 2)), TensorSpec("z", "FP32", (-1, 5))),
    )
    config.check_agrees(file)
    assert config.metadata(["1"]).inputs == config.inputs
    unreshaped = ModelDescription(inputs=file.inputs, outputs=(TensorSpec("y", "FP32", (-1, 4)), file.outputs[1]))
    with pytest.raises(ModelConfigError) as caught:
        config.check_agrees(unreshaped)
    assert caught.value.field == "output.y.dims"


@pytest.mark.parametrize(
    ("shape", "dims", "target", "expected"),
    [
        ((1,), (1,), (), ()),
        ((), (), (1, 1), (1, 1)),
        ((7, 6), (-1, 6), (-1, 2, 3), (7, 2, 3)),
        ((7, 2, 3), (-1, 2, 3), (-1, 6), (7, 6)),
        ((5, 4, 9), (-1, 4, -1), (-1, 2, 2, -1), (5, 2, 2, 9)),
    ],
)
def test_reshaped_keeps_free_dimensions_in_their_order(
    shape: tuple[int, ...], dims: tuple[int, ...], target: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert reshaped(shape, dims, target) == expected


def test_warm_ups_are_checked_against_what_the_model_file_tells() -> None:
    sample = "inputs { key: 'x' value { data_type: TYPE_FP32 dims: %d zero_data: true } }"
    config = read(f"model_warmup {{ name: 'a' batch_size: 32 {sample % 4} }}").completed(BATCHABLE)
    assert config.warm_ups[0].rows == 32
    with pytest.raises(ModelConfigError, match="batch_size 33"):
        read(f"model_warmup {{ name: 'a' batch_size: 33 {sample % 4} }}").completed(BATCHABLE)
    with pytest.raises(ModelConfigError, match="do not fit"):
        read(f"model_warmup {{ name: 'a' {sample % 5} }}").completed(BATCHABLE)
    alone = read(f"model_warmup {{ name: 'a' batch_size: 1 {sample.replace('%d', '[1, 4]')} }}").completed(FIXED)
    assert alone.warm_ups[0].rows == 0


def test_metadata_tells_callers_what_triton_would() -> None:
    inputs = 'input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }'
    metadata = read(f"max_batch_size: 4 {inputs}").metadata(["1", "3"])
    assert metadata.platform == "onnxruntime_onnx"
    assert (metadata.name, metadata.versions, metadata.max_batch_size) == ("m", ("1", "3"), 4)
    assert metadata.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert read("", backend="device").metadata(["1"]).platform == "device"


def test_a_model_config_error_travels_as_any_other() -> None:
    error: InferenceError = ModelConfigError("wrong", field="f", value=1, remedy="r")
    assert error.detail().code == "model_load_failed"
