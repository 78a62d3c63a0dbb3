"""The `device` backend: a simulated device that gives INPUT0 back as OUTPUT0 after a known time.

For tests and benchmarks. With no parameters it is the identity model. Parameters of config.pbtxt: `execute_base_ms` and
`execute_row_ms` (time of a batch: base + row * rows), `load_ms` (time of loading), `fail_value` and `hang_value` (a row
that begins with it makes the batch fail, or never end), `memory_rows` (a larger batch has no memory), `away_calls` (so
many calls after loading fail for a reason that passes). Must not know any ML library.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from schemas.errors import ErrorCode, InferenceError
from workers.backend import Array, Backend, OutOfMemory, TransientError
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription
from workers.placement import Placement

_CPU = Placement()
_HANG_MS = 24 * 3600 * 1000  # who waits for this has given up long before


class DeviceBackend:
    """Identity after a sleep. `busy_s` is the time spent in `infer` since `load`, in seconds."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._config: ModelConfig | None = None
        self._base_ms = 0.0
        self._row_ms = 0.0
        self._fail_value: float | bytes | None = None
        self._hang_value: float | bytes | None = None
        self._memory_rows = 0
        self._away_calls = 0

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """See Backend.load. The directory is not looked at."""
        inputs = {spec.name: spec.datatype for spec in config.inputs}
        outputs = {spec.name: spec.datatype for spec in config.outputs}
        if set(inputs) != {"INPUT0"} or set(outputs) != {"OUTPUT0"} or inputs["INPUT0"] != outputs["OUTPUT0"]:
            raise ModelConfigError(
                f"model {config.name!r}: the device backend gives INPUT0 back as OUTPUT0, both of one datatype",
                field="input, output",
                value=[*inputs, *outputs],
                remedy="configure the one input INPUT0 and the one output OUTPUT0",
            )
        self._base_ms = _number(config, "execute_base_ms")
        self._row_ms = _number(config, "execute_row_ms")
        is_text = inputs["INPUT0"] == "BYTES"
        self._fail_value = _value(config, "fail_value", is_text=is_text)
        self._hang_value = _value(config, "hang_value", is_text=is_text)
        self._memory_rows = int(_number(config, "memory_rows"))
        self._away_calls = int(_number(config, "away_calls"))
        _occupy(_number(config, "load_ms"))
        self._config = config
        self.busy_s = 0.0

    def warm_up(self) -> None:
        """See Backend.warm_up. Nothing here is slow at first."""

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """See Backend.infer."""
        if self._config is None:
            raise RuntimeError("infer before load")
        started_s = time.monotonic()
        array = inputs["INPUT0"]
        rows = array.shape[0] if self._config.max_batch_size else 1
        if self._away_calls:
            self._away_calls -= 1
            raise TransientError("this simulated device is away for now")
        if self._memory_rows and rows > self._memory_rows:
            raise OutOfMemory(f"this simulated device has no memory for {rows} rows, only for {self._memory_rows}")
        if self._hang_value is not None and _begins_with(self._hang_value, array, rows):
            _occupy(_HANG_MS)
        _occupy(self._base_ms + self._row_ms * rows)
        self.busy_s += time.monotonic() - started_s
        if self._fail_value is not None and _begins_with(self._fail_value, array, rows):
            raise InferenceError(
                ErrorCode.MODEL_FAILED,
                "a row begins with the value that makes this simulated device fail",
                field="INPUT0",
                value=self._fail_value,
                remedy="send another value, or remove fail_value from the model's parameters",
            )
        return {"OUTPUT0": array}

    def unload(self) -> None:
        """See Backend.unload."""
        self._config = None


def open_backend() -> Backend:
    """A device that has loaded nothing."""
    return DeviceBackend()


def import_library() -> object:
    """See BackendModule."""
    return None


def describe(path: Path, filename: str) -> ModelDescription:
    """There is no file to ask: raises ModelConfigError."""
    raise ModelConfigError(
        "a model of the device backend has no file that tells its inputs and outputs",
        field="input, output",
        remedy="give them in config.pbtxt",
    )


def _begins_with(value: float | bytes, array: Array, rows: int) -> bool:
    # Rows without elements have no first one.
    firsts = np.reshape(array, (rows, -1))[:, :1] if array.size else array
    return bool(np.any(firsts == value))


def _occupy(duration_ms: float) -> None:
    # This sleep is the device: it takes the time and, as a real one does, leaves the interpreter to other threads.
    if duration_ms > 0:
        time.sleep(duration_ms / 1000)


def _value(config: ModelConfig, parameter: str, *, is_text: bool) -> float | bytes | None:
    if parameter not in config.parameters:
        return None
    return config.parameters[parameter].encode() if is_text else _number(config, parameter)


def _number(config: ModelConfig, parameter: str) -> float:
    text = config.parameters.get(parameter, "0")
    try:
        return float(text)
    except ValueError as cause:
        raise ModelConfigError(
            f"parameter {parameter!r} of model {config.name!r} is no number: {text!r}",
            field=f"parameters.{parameter}",
            value=text,
            remedy='give a number as string_value, such as "8" or "0.05"',
        ) from cause
