from pathlib import Path

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from schemas.tensor import pack_bytes_elements
from workers.backend import Array, OutOfMemory
from workers.batch import NUMPY_TYPE
from workers.model_config import ModelConfig, ModelConfigError, WarmUp, WarmUpInput
from workers.placement import Placement
from workers.warm_up import model_shape, run_warm_ups, run_zeros


class Recorder:
    """A backend that keeps what it is given, or raises what it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[dict[str, Array]] = []
        self.wanted: list[tuple[str, ...]] = []
        self._error = error

    def load(self, path: Path, config: ModelConfig, placement: Placement = Placement()) -> None:  # noqa: B008 - frozen
        pass

    def warm_up(self) -> None:
        pass

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        self.batches.append(inputs)
        self.wanted.append(outputs)
        if self._error is not None:
            raise self._error
        return {}

    def unload(self) -> None:
        pass


def config(
    *fields: WarmUpInput, rows: int = 1, count: int = 1, max_batch_size: int = 8, **changes: object
) -> ModelConfig:
    """A model whose inputs are those of its one sample, unless `changes` says otherwise."""
    inputs = tuple(TensorSpec(field.name, field.datatype, field.shape) for field in fields)
    sample = WarmUp("first", rows, count, fields)
    values: dict[str, object] = {"inputs": inputs, "warm_ups": (sample,), "max_batch_size": max_batch_size} | changes
    return ModelConfig("m", "onnxruntime", **values)  # type: ignore[arg-type]  # callers change fields to what they are


def run(config: ModelConfig, directory: Path = Path("nowhere")) -> list[dict[str, Array]]:
    backend = Recorder()
    run_warm_ups(backend, config, directory)
    assert set(backend.wanted) <= {()}  # all outputs
    return backend.batches


def zero(name: str = "x", datatype: str = "FP32", shape: tuple[int, ...] = (2,)) -> WarmUpInput:
    return WarmUpInput(name, datatype, shape, "zero")


def file(datatype: str = "FP32", shape: tuple[int, ...] = (2,), filename: str = "x.bin") -> WarmUpInput:
    return WarmUpInput("x", datatype, shape, "file", filename)


def test_each_sample_runs_in_order_as_often_as_it_says_and_at_least_once() -> None:
    samples = (WarmUp("a", 1, 0, (zero(),)), WarmUp("b", 4, 3, (zero(),)))
    batches = run(config(zero(), warm_ups=samples))
    assert [len(batch["x"]) for batch in batches] == [1, 4, 4, 4]


def test_no_samples_run_nothing() -> None:
    assert run(config(zero(), warm_ups=())) == []


@pytest.mark.parametrize("datatype", sorted(NUMPY_TYPE))
@pytest.mark.parametrize("source", ["zero", "random"])
def test_zero_and_random_data_have_the_inputs_type_and_shape(datatype: str, source: str) -> None:
    field = WarmUpInput("x", datatype, (3, 5), source)  # type: ignore[arg-type]  # one of the literals
    ((array,),) = ([*batch.values()] for batch in run(config(field, rows=2)))
    assert array.dtype == NUMPY_TYPE[datatype]
    assert array.shape == (2, 3, 5)
    np.testing.assert_array_equal(array[0], array[1])
    is_zero = all(item in (b"", 0) for item in array.reshape(-1))
    assert is_zero is (source == "zero" or datatype == "BYTES")


def test_random_numbers_are_the_same_at_every_start_and_finite() -> None:
    field = WarmUpInput("x", "BF16", (1000,), "random")
    first, second = run(config(field, warm_ups=(WarmUp("a", 1, 1, (field,)), WarmUp("b", 1, 1, (field,)))))
    np.testing.assert_array_equal(first["x"], second["x"])
    values = (first["x"].astype(np.uint32) << 16).view(np.float32)
    assert np.all((values >= 0) & (values < 1))


def test_without_batch_dimension_the_shape_is_exact() -> None:
    assert run(config(zero(shape=(2, 3)), rows=0, max_batch_size=0))[0]["x"].shape == (2, 3)


def test_a_file_holds_one_row_that_every_row_repeats(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(np.array([1.5, -2], "<f4").tobytes())
    (batch,) = run(config(file(), rows=3), tmp_path)
    np.testing.assert_array_equal(batch["x"], [[1.5, -2]] * 3)


def test_a_file_of_bytes_has_elements_behind_their_lengths(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(pack_bytes_elements([b"", b"ab\0"]))
    (batch,) = run(config(file("BYTES"), rows=2), tmp_path)
    assert batch["x"].tolist() == [[b"", b"ab\0"]] * 2


def test_the_backend_sees_the_models_shape() -> None:
    specs = (TensorSpec("x", "FP32", (1,)), TensorSpec("y", "FP32", (-1, 2)))
    fields = (zero("x", shape=(1,)), zero("y", shape=(3, 2)))
    reshapes = {"x": (), "y": (2, -1)}
    (batch,) = run(config(*fields, rows=4, inputs=specs, input_reshapes=reshapes))
    assert batch["x"].shape == (4,)
    assert batch["y"].shape == (4, 2, 3)


@pytest.mark.parametrize(
    ("content", "field", "remedy"),
    [
        (None, file(), "warmup"),
        (b"1234567", file(), "8 bytes"),
        (b"123456789", file(), "8 bytes"),
        (b"\xff\0\0\0a", file("BYTES"), "length"),
        (pack_bytes_elements([b"only"]), file("BYTES"), "2 elements"),
        (b"12345678", file(filename="../x.bin"), "warmup"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    content: bytes | None, field: WarmUpInput, remedy: str, tmp_path: Path
) -> None:
    directory = tmp_path / "warmup"
    directory.mkdir()
    if content is not None:
        (directory / "x.bin").write_bytes(content)
        (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(ModelConfigError) as caught:
        run(config(field), directory)
    assert caught.value.field == "model_warmup.x.input_data_file"
    assert caught.value.value == field.filename
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("sample", "at"),
    [
        (WarmUp("s", 1, 1, (zero("y"),)), "y"),
        (WarmUp("s", 1, 1, ()), "x"),
        (WarmUp("s", 1, 1, (zero(datatype="FP16"),)), "x.data_type"),
        (WarmUp("s", 1, 1, (zero(shape=(3,)),)), "x.dims"),
        (WarmUp("s", 1, 1, (zero(shape=(1, 2)),)), "x.dims"),
        (WarmUp("s", 9, 1, (zero(),)), "batch_size"),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_refused(sample: WarmUp, at: str) -> None:
    with pytest.raises(ModelConfigError, match="'s'") as caught:
        run(config(zero(), warm_ups=(sample,)))
    assert caught.value.field == f"model_warmup.{at}"
    assert caught.value.remedy


def test_an_optional_input_may_be_left_out() -> None:
    inputs = (TensorSpec("x", "FP32", (2,)), TensorSpec("maybe", "FP32", (2,), optional=True))
    assert list(run(config(zero(), inputs=inputs))[0]) == ["x"]


def test_a_model_that_fails_on_its_sample_fails_to_load_with_the_cause() -> None:
    cause = InferenceError(ErrorCode.MODEL_FAILED, "no")
    with pytest.raises(InferenceError, match="first") as caught:
        run_warm_ups(Recorder(cause), config(zero()), Path("nowhere"))
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    assert caught.value.__cause__ is cause
    with pytest.raises(OutOfMemory):
        run_warm_ups(Recorder(OutOfMemory("full")), config(zero()), Path("nowhere"))


def test_zeros_are_run_once_in_the_models_shape_with_free_dimensions_one() -> None:
    backend = Recorder()
    specs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("t", "BYTES", (1,)))
    run_zeros(backend, config(inputs=specs, warm_ups=(), input_reshapes={"t": ()}))
    (batch,) = backend.batches
    assert {name: array.shape for name, array in batch.items()} == {"x": (1, 1, 3), "t": (1,)}
    assert batch["t"][0] == b""


def test_zeros_are_not_run_beside_samples_and_may_be_refused() -> None:
    backend = Recorder(InferenceError(ErrorCode.MODEL_FAILED, "zeros are not for me"))
    run_zeros(backend, config(zero()))
    assert backend.batches == []
    with structlog.testing.capture_logs() as logs:
        run_zeros(backend, config(inputs=(TensorSpec("x", "FP32", (1,)),), warm_ups=()))
    assert [log["event"] for log in logs] == ["warm_up_refused"]
    with pytest.raises(OutOfMemory):
        run_zeros(Recorder(OutOfMemory("full")), config(inputs=(TensorSpec("x", "FP32", (1,)),), warm_ups=()))


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=4))
def test_a_reshape_keeps_the_number_of_elements(dims: list[tuple[int, bool]]) -> None:
    shape = tuple(size for size, _ in dims)
    spec = tuple(-1 if is_free else size for size, is_free in dims)
    reshaped = ModelConfig(
        "m", "onnxruntime", inputs=(TensorSpec("x", "FP32", spec),), input_reshapes={"x": (1, *spec, 1)}
    )
    assert model_shape(reshaped, "x", shape) == (1, *shape, 1)
