"""What every backend promises: one suite, run on each form of model by a subclass that gives a `Form`.

The models are the same in every form: see tests/models.py. `max_batch_size` is 8, rows are 4 wide.
"""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from workers.backend import Array, Backend, OutOfMemory, open_backend
from workers.batch import NUMPY_TYPE
from workers.model_config import ModelConfig, ModelConfigError
from workers.placement import Placement

MAX_BATCH_SIZE = 8
_ROW = (4,)


def config_of(backend: str, model: str, datatype: str = "FP32", **changes: object) -> ModelConfig:
    """The configuration of one of the contract's models."""
    row = TensorSpec("INPUT0", datatype, _ROW)
    inputs: tuple[TensorSpec, ...] = (row,)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("OUTPUT0", datatype, _ROW),)
    size = MAX_BATCH_SIZE
    if model == "add_sub":
        inputs, outputs = (row, TensorSpec("INPUT1", "FP32", _ROW)), (*outputs, TensorSpec("OUTPUT1", "FP32", _ROW))
    elif model == "picks":
        inputs = (row, TensorSpec("INDEX", "INT64", _ROW))
    elif model == "row_sum":
        inputs, outputs = (TensorSpec("INPUT0", "FP32", (-1,)),), (TensorSpec("OUTPUT0", "FP32", (1,)),)
    elif model == "vector":
        inputs, outputs, size = (TensorSpec("INPUT0", "FP32", (3,)),), (TensorSpec("OUTPUT0", "FP32", (3,)),), 0
    elif model == "huge":
        inputs, outputs, size = (TensorSpec("INPUT0", "INT64", (1,)),), (TensorSpec("OUTPUT0", "FP32", (-1,)),), 0
    fields: dict[str, object] = {"inputs": inputs, "outputs": outputs, "max_batch_size": size} | changes
    return ModelConfig("m", backend, **fields)  # type: ignore[arg-type]  # callers change fields to what they are


class Form:
    """A form in which models come. `lacks` names what it does not have, so that those tests are skipped."""

    backend: str
    filename: str
    placement = Placement()
    lacks: ClassVar[dict[str, str]] = {}
    datatypes: ClassVar[tuple[str, ...]] = tuple(sorted(set(NUMPY_TYPE) - {"BYTES"}))

    def write(self, directory: Path, model: str, datatype: str = "FP32") -> None:
        """Put a model's file into a directory."""
        raise NotImplementedError

    def load(self, directory: Path, model: str, datatype: str = "FP32") -> Backend:
        """A backend that has loaded the model that `write` puts there."""
        if model in self.lacks:
            pytest.skip(self.lacks[model])
        self.write(directory, model, datatype)
        backend = open_backend(self.backend)
        backend.load(directory, config_of(self.backend, model, datatype), self.placement)
        backend.warm_up()
        return backend


def rows(count: int, first: float = 0) -> Array:
    array: Array = np.arange(first, first + count * 4, dtype=np.float32).reshape(count, 4)
    return array


class BackendContract:
    @pytest.fixture
    def form(self) -> Form:
        """The form of model that the suite is run on."""
        raise NotImplementedError

    def test_a_batch_gives_all_outputs_or_those_asked_for(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "add_sub")
        both = backend.infer({"INPUT0": rows(3), "INPUT1": rows(3, 1)}, ())
        np.testing.assert_array_equal(both["OUTPUT0"], rows(3) * 2 + 1)
        np.testing.assert_array_equal(both["OUTPUT1"], -np.ones((3, 4), np.float32))
        assert {array.dtype for array in both.values()} == {np.dtype(np.float32)}
        one = backend.infer({"INPUT1": rows(3, 1), "INPUT0": rows(3)}, ("OUTPUT1",))
        np.testing.assert_array_equal(one["OUTPUT1"], both["OUTPUT1"])
        assert list(one) == ["OUTPUT1"]

    def test_any_number_of_rows_up_to_the_batch_size(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "add_sub")
        for count in (1, MAX_BATCH_SIZE, 2, 5, 1):
            outputs = backend.infer({"INPUT0": rows(count), "INPUT1": rows(count)}, ())
            np.testing.assert_array_equal(outputs["OUTPUT0"], rows(count) * 2)
            np.testing.assert_array_equal(outputs["OUTPUT1"], rows(count) * 0)

    def test_no_rows_give_no_rows(self, form: Form, tmp_path: Path) -> None:
        if "no rows" in form.lacks:
            pytest.skip(form.lacks["no rows"])
        backend = form.load(tmp_path, "add_sub")
        outputs = backend.infer({"INPUT0": rows(0), "INPUT1": rows(0)}, ())
        assert {name: array.shape for name, array in outputs.items()} == {"OUTPUT0": (0, 4), "OUTPUT1": (0, 4)}

    @pytest.mark.parametrize("datatype", Form.datatypes)
    def test_each_datatype_goes_in_and_out(self, form: Form, tmp_path: Path, datatype: str) -> None:
        if datatype not in form.datatypes:
            pytest.skip(f"{form.backend} has no {datatype} in this form")
        x = np.array([[0, 1, 2, 100], [3, 4, 5, 6]]).astype(NUMPY_TYPE[datatype])
        if datatype == "BF16":
            x = np.array([[0, 0x3F80, 0x4000, 0xC2C8], [0x7F80, 0x0001, 0, 1]], np.uint16)
        output = form.load(tmp_path, "identity", datatype).infer({"INPUT0": x}, ("OUTPUT0",))["OUTPUT0"]
        assert output.dtype == x.dtype
        np.testing.assert_array_equal(output, x)

    def test_without_batch_dimension_shapes_are_exact(self, form: Form, tmp_path: Path) -> None:
        x = np.array([1, 2, 3], np.float32)
        output = form.load(tmp_path, "vector").infer({"INPUT0": x}, ("OUTPUT0",))["OUTPUT0"]
        np.testing.assert_array_equal(output, x)

    def test_a_free_dimension_takes_any_length(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "row_sum")
        for length in (2, 7, 3):
            output = backend.infer({"INPUT0": np.ones((2, length), np.float32)}, ())["OUTPUT0"]
            np.testing.assert_array_equal(output, [[length], [length]])

    def test_inputs_may_be_views_of_a_record_and_are_only_read(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "add_sub")
        record = b"!" + np.arange(8, dtype="<f4").tobytes()
        view = np.frombuffer(memoryview(record)[1:], dtype="<f4").reshape(2, 4)  # neither writable nor aligned
        writable = rows(2)
        outputs = backend.infer({"INPUT0": view, "INPUT1": view}, ())
        np.testing.assert_array_equal(outputs["OUTPUT0"], rows(2) * 2)
        backend.infer({"INPUT0": writable, "INPUT1": writable}, ())
        np.testing.assert_array_equal(writable, rows(2))
        assert record == b"!" + np.arange(8, dtype="<f4").tobytes()

    def test_inputs_may_be_rows_out_of_the_middle_in_any_order(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "add_sub")
        columns = np.asfortranarray(rows(4))
        outputs = backend.infer({"INPUT0": columns[1:3], "INPUT1": rows(4)[::-2]}, ())
        np.testing.assert_array_equal(outputs["OUTPUT0"], rows(4)[1:3] + rows(4)[::-2])

    def test_outputs_are_the_callers(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "add_sub")
        first = backend.infer({"INPUT0": rows(2), "INPUT1": rows(2)}, ())
        kept = {name: array.copy() for name, array in first.items()}
        backend.infer({"INPUT0": rows(2, 100), "INPUT1": rows(2, 50)}, ())
        backend.unload()
        for name, array in kept.items():
            np.testing.assert_array_equal(first[name], array)

    def test_unload_may_come_first_twice_and_before_another_load(self, form: Form, tmp_path: Path) -> None:
        open_backend(form.backend).unload()
        backend = form.load(tmp_path, "add_sub")
        backend.unload()
        backend.unload()
        backend.load(tmp_path, config_of(form.backend, "add_sub"), form.placement)
        outputs = backend.infer({"INPUT0": rows(1), "INPUT1": rows(1)}, ())
        np.testing.assert_array_equal(outputs["OUTPUT0"], rows(1) * 2)

    def test_a_failed_load_may_be_tried_again(self, form: Form, tmp_path: Path) -> None:
        if not form.filename:
            pytest.skip("there is no file that could be missing")
        backend = open_backend(form.backend)
        with pytest.raises(InferenceError):
            backend.load(tmp_path, config_of(form.backend, "add_sub"), form.placement)
        form.write(tmp_path, "add_sub")
        backend.load(tmp_path, config_of(form.backend, "add_sub"), form.placement)
        assert backend.infer({"INPUT0": rows(1), "INPUT1": rows(1)}, ())

    def test_instances_in_threads_of_their_own_agree(self, form: Form, tmp_path: Path) -> None:
        form.load(tmp_path, "add_sub").unload()
        loaded = threading.Barrier(2)

        def work(number: int) -> list[Array]:
            backend = open_backend(form.backend)
            try:
                backend.load(tmp_path, config_of(form.backend, "add_sub"), form.placement)
            except BaseException:
                loaded.abort()
                raise
            loaded.wait()  # both run at once
            batches = [{"INPUT0": rows(4, start), "INPUT1": rows(4)} for start in range(number, 40, 2)]
            outputs = [backend.infer(batch, ("OUTPUT0",))["OUTPUT0"] for batch in batches]
            backend.unload()
            return outputs

        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(work, number) for number in range(2)]
        for number, future in enumerate(running):
            expected = [rows(4, start) + rows(4) for start in range(number, 40, 2)]
            np.testing.assert_array_equal(future.result(), expected)

    def test_a_missing_file_fails_to_load(self, form: Form, tmp_path: Path) -> None:
        if not form.filename:
            pytest.skip("there is no file that could be missing")
        with pytest.raises(InferenceError, match="there is no model file") as caught:
            open_backend(form.backend).load(tmp_path, config_of(form.backend, "add_sub"), form.placement)
        assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
        assert caught.value.field
        assert caught.value.remedy

    def test_a_damaged_file_fails_to_load_with_its_cause(self, form: Form, tmp_path: Path) -> None:
        if not form.filename:
            pytest.skip("there is no file that could be damaged")
        form.load(tmp_path, "add_sub").unload()
        whole = (tmp_path / form.filename).read_bytes()
        (tmp_path / form.filename).write_bytes(whole[: len(whole) // 3])
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        with pytest.raises(InferenceError) as caught:
            open_backend(form.backend).load(tmp_path, config_of(form.backend, "add_sub"), form.placement)
        assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
        assert caught.value.__cause__ is not None or form.backend == "tensorrt"

    def test_a_configuration_that_does_not_fit_is_refused(self, form: Form, tmp_path: Path) -> None:
        if "disagreement" in form.lacks:
            pytest.skip(form.lacks["disagreement"])
        form.load(tmp_path, "add_sub").unload()
        config = config_of(form.backend, "add_sub")
        more = config_of(form.backend, "add_sub", inputs=(*config.inputs, TensorSpec("EXTRA", "FP32", _ROW)))
        with pytest.raises(ModelConfigError) as caught:
            open_backend(form.backend).load(tmp_path, more, form.placement)
        assert caught.value.field
        assert caught.value.remedy

    def test_a_failing_batch_is_model_failed_and_the_next_one_runs(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "picks")
        with pytest.raises(InferenceError) as caught:
            backend.infer({"INPUT0": rows(1), "INDEX": np.full((1, 4), 99)}, ())
        assert caught.value.code is ErrorCode.MODEL_FAILED
        assert caught.value.__cause__ is not None
        output = backend.infer({"INPUT0": rows(1), "INDEX": np.full((1, 4), 2)}, ())["OUTPUT0"]
        np.testing.assert_array_equal(output, np.full((1, 4), 2.0))

    def test_no_memory_is_told_apart(self, form: Form, tmp_path: Path) -> None:
        backend = form.load(tmp_path, "huge")
        with pytest.raises(OutOfMemory):
            backend.infer({"INPUT0": np.array([1 << 46])}, ())
        output = backend.infer({"INPUT0": np.array([3])}, ())["OUTPUT0"]
        np.testing.assert_array_equal(output, np.zeros(3))
