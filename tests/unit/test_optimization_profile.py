import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.model import TensorSpec
from workers.backends.optimization_profile import PROFILE_PARAMETERS, ShapeRange, optimization_profile, trtexec_text
from workers.model_config import ModelConfig, ModelConfigError

Shape = tuple[int, ...]


def config(*shapes: Shape, max_batch_size: int = 8, parameters: dict[str, str] | None = None) -> ModelConfig:
    inputs = tuple(TensorSpec(f"in:{index}", "FP32", shape) for index, shape in enumerate(shapes))
    return ModelConfig("m", "tensorrt", max_batch_size=max_batch_size, inputs=inputs, parameters=parameters or {})


def test_batches_of_one_row_to_the_largest_follow_from_the_configuration() -> None:
    assert optimization_profile(config((3, 4), ())) == {
        "in:0": ShapeRange((1, 3, 4), (8, 3, 4), (8, 3, 4)),
        "in:1": ShapeRange((1,), (8,), (8,)),
    }


def test_without_batch_dimension_the_shape_is_the_only_one() -> None:
    assert optimization_profile(config((2,), max_batch_size=0)) == {"in:0": ShapeRange((2,), (2,), (2,))}


def test_the_models_shape_counts_where_callers_see_another() -> None:
    reshaped = ModelConfig(
        "m", "tensorrt", max_batch_size=2, inputs=(TensorSpec("x", "FP32", (4,)),), input_reshapes={"x": (2, 2)}
    )
    assert optimization_profile(reshaped)["x"] == ShapeRange((1, 2, 2), (2, 2, 2), (2, 2, 2))


def test_a_free_dimension_needs_its_shapes_configured() -> None:
    with pytest.raises(ModelConfigError, match="in:0") as caught:
        optimization_profile(config((-1,)))
    assert caught.value.field == "parameters.profile_min_shapes"
    parameters = {
        "profile_min_shapes": "in:0:1x1",
        "profile_opt_shapes": "in:0:4x64",
        "profile_max_shapes": "in:0:8x512",
    }
    assert optimization_profile(config((-1,), parameters=parameters)) == {"in:0": ShapeRange((1, 1), (4, 64), (8, 512))}


@pytest.mark.parametrize("text", ["in:0", "in:0:", ":1x2", "in:0:1xa", "in:0:0x1", "in:0:1x-2"])
def test_text_that_is_no_shape_is_refused_with_the_parameter(text: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        optimization_profile(config((2,), parameters={"profile_opt_shapes": text}))
    assert caught.value.field == "parameters.profile_opt_shapes"


def test_shapes_that_do_not_ascend_are_refused() -> None:
    parameters = dict(zip(PROFILE_PARAMETERS, ("in:0:4x1", "in:0:2x1", "in:0:8x1"), strict=True))
    with pytest.raises(ModelConfigError, match="ascend"):
        optimization_profile(config((1,), parameters=parameters))


@given(st.lists(st.lists(st.integers(1, 4096), min_size=1, max_size=5).map(tuple), min_size=1, max_size=4))
def test_what_is_written_is_read(shapes: list[Shape]) -> None:
    text = trtexec_text({f"in:{index}": shape for index, shape in enumerate(shapes)})
    inputs = [shape[1:] for shape in shapes]
    profile = optimization_profile(config(*inputs, parameters=dict.fromkeys(PROFILE_PARAMETERS, text)))
    assert [shapes.max for shapes in profile.values()] == shapes
