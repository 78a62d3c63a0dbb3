import time
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from workers.backend import OutOfMemory, TransientError, describe_model
from workers.backends.device import DeviceBackend
from workers.config_pbtxt import read_config
from workers.model_config import ModelConfigError


def load(datatype: str = "FP32", *, max_batch_size: int = 8, **parameters: str) -> DeviceBackend:
    tensor = f"data_type: TYPE_{datatype} dims: -1"
    text = f'backend: "device" max_batch_size: {max_batch_size} input {{ name: "INPUT0" {tensor} }}'
    text += f'output {{ name: "OUTPUT0" {tensor} }}'
    for key, value in parameters.items():
        text += f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    backend = DeviceBackend()
    backend.load(Path("nowhere"), read_config(text, model="m"))
    return backend


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the device was occupied for, which then do not pass."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_without_parameters_it_is_the_identity_at_once(slept_s: list[float]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert load().infer({"INPUT0": x}, ("OUTPUT0",))["OUTPUT0"] is x
    assert slept_s == []


def test_a_batch_takes_base_and_row_time(slept_s: list[float]) -> None:
    backend = load(execute_base_ms="8", execute_row_ms="0.5", load_ms="250")
    backend.infer({"INPUT0": np.zeros((4, 2), np.float32)}, ())
    assert slept_s == [0.25, pytest.approx(0.010)]


def test_without_batch_dimension_a_request_is_one_row(slept_s: list[float]) -> None:
    load(max_batch_size=0, execute_row_ms="2").infer({"INPUT0": np.zeros(4, np.float32)}, ())
    assert slept_s == [0.002]


def test_busy_time_is_that_of_inference() -> None:
    backend = load(execute_base_ms="5", load_ms="1")
    assert backend.busy_s == 0
    backend.infer({"INPUT0": np.zeros((1, 1), np.float32)}, ())
    assert backend.busy_s >= 0.005


def test_a_row_that_begins_with_the_fail_value_fails_the_batch() -> None:
    backend = load(fail_value="666")
    backend.infer({"INPUT0": np.array([[1, 666], [2, 3]], np.float32)}, ())
    backend.infer({"INPUT0": np.zeros((2, 0), np.float32)}, ())
    with pytest.raises(InferenceError) as caught:
        backend.infer({"INPUT0": np.array([[1, 2], [666, 3]], np.float32)}, ())
    assert caught.value.code is ErrorCode.MODEL_FAILED


def test_the_fail_value_of_bytes_is_text() -> None:
    backend = load("STRING", fail_value="poison")
    backend.infer({"INPUT0": np.array([[b"fine"]], dtype=object)}, ())
    with pytest.raises(InferenceError):
        backend.infer({"INPUT0": np.array([[b"fine"], [b"poison"]], dtype=object)}, ())


def test_zero_can_be_the_fail_value() -> None:
    with pytest.raises(InferenceError):
        load(fail_value="0").infer({"INPUT0": np.zeros((1, 1), np.float32)}, ())


def test_other_tensors_or_a_parameter_that_is_no_number_are_refused() -> None:
    with pytest.raises(ModelConfigError, match="execute_base_ms"):
        load(execute_base_ms="fast")
    config = read_config('backend: "device" input { name: "x" data_type: TYPE_FP32 dims: 1 }', model="m")
    with pytest.raises(ModelConfigError, match="INPUT0"):
        DeviceBackend().load(Path("nowhere"), config)


def test_there_is_no_file_to_complete_a_configuration_from(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="no file"):
        describe_model("device", tmp_path)


def test_a_batch_beyond_its_memory_has_none() -> None:
    backend = load(memory_rows="2")
    backend.infer({"INPUT0": np.zeros((2, 1), np.float32)}, ())
    with pytest.raises(OutOfMemory, match="3 rows"):
        backend.infer({"INPUT0": np.zeros((3, 1), np.float32)}, ())


def test_it_is_away_for_the_first_calls_after_loading() -> None:
    backend = load(away_calls="2")
    for _ in range(2):
        with pytest.raises(TransientError):
            backend.infer({"INPUT0": np.zeros((1, 1), np.float32)}, ())
    backend.infer({"INPUT0": np.zeros((1, 1), np.float32)}, ())


def test_a_row_that_begins_with_the_hang_value_never_ends(slept_s: list[float]) -> None:
    backend = load(hang_value="13")
    backend.infer({"INPUT0": np.array([[1, 13]], np.float32)}, ())
    assert slept_s == []
    backend.infer({"INPUT0": np.array([[1, 0], [13, 0]], np.float32)}, ())
    assert slept_s[0] >= 3600
