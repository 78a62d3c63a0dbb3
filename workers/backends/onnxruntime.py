"""The `onnxruntime` backend: ONNX models on the CPU. The only importer of ONNX Runtime, and only once a model is there.

Parameter of config.pbtxt: `intra_op_thread_count` (threads of one instance inside an operator). Must not know Kafka,
batching or repositories.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.model import TensorSpec
from workers.backend import Array, Backend, OutOfMemory
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription
from workers.placement import Placement

_MODEL_FILENAME = "model.onnx"
_PROVIDERS = ["CPUExecutionProvider"]
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_ERRORS_ONLY = 3  # severity of ONNX Runtime's own log, which goes to stderr as plain text
_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "BYTES",
}
_CPU = Placement()
_OUT_OF_MEMORY = ("failed to allocate memory", "bad_alloc", "bad allocation", "out of memory")


class OnnxRuntimeBackend:
    """One session. Numeric arrays go in as they are; only the outputs that are asked for are computed."""

    def __init__(self) -> None:
        self._session: Any = None  # onnxruntime has no types
        self._inputs: dict[str, str] = {}  # datatypes by name
        self._outputs: dict[str, str] = {}

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """See Backend.load."""
        session = _open_session(_model_file(path, config.default_model_filename), threads=placement.threads)
        config.check_agrees(_description_of(session))
        self._inputs = {spec.name: spec.datatype for spec in config.inputs}
        self._outputs = {spec.name: spec.datatype for spec in config.outputs}
        self._check_mix(config.name)
        self._session = session

    def _check_mix(self, model: str) -> None:
        if "BYTES" in self._inputs.values() and "BF16" in {*self._inputs.values(), *self._outputs.values()}:
            raise ModelConfigError(
                f"model {model!r} has BYTES inputs beside BF16, which ONNX Runtime cannot be given together",
                field="input",
                value=self._inputs,
                remedy="export the model with FP32 or FP16 in place of BF16 at its inputs and outputs",
            )

    def warm_up(self) -> None:
        """See Backend.warm_up. Loading has optimised the graph; samples of config.pbtxt are not run yet."""

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """See Backend.infer. BYTES must be UTF-8: ONNX strings hold nothing else."""
        names = list(outputs or self._outputs)
        feed = {
            name: _to_text(name, array) if self._inputs[name] == "BYTES" else array for name, array in inputs.items()
        }
        if "BF16" in self._inputs.values() or any(self._outputs[name] == "BF16" for name in names):
            return dict(zip(names, self._run_bfloat16(feed, names), strict=True))
        with _run_errors():
            arrays = self._session.run(names, feed)
        return {
            name: _to_bytes(array) if self._outputs[name] == "BYTES" else array
            for name, array in zip(names, arrays, strict=True)
        }

    def _run_bfloat16(self, feed: dict[str, Array], names: list[str]) -> list[Array]:
        """Run through ONNX Runtime's own values, as numpy has no such type: its bits go in and out as uint16."""
        from onnxruntime import OrtValue

        with _run_errors():
            values = {}
            for name, array in feed.items():
                if self._inputs[name] == "BF16":
                    bits = np.ascontiguousarray(array, dtype=np.uint16)
                    values[name] = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
                else:
                    values[name] = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
            results = self._session.run_with_ort_values(names, values)
        return [
            _bits_of(value)
            if self._outputs[name] == "BF16"
            else _to_bytes(value.numpy())
            if self._outputs[name] == "BYTES"
            else value.numpy()
            for name, value in zip(names, results, strict=True)
        ]

    def unload(self) -> None:
        """See Backend.unload."""
        self._session = None


def open_backend() -> Backend:
    """A backend that has loaded nothing."""
    return OnnxRuntimeBackend()


def describe(path: Path, filename: str) -> ModelDescription:
    """Inputs and outputs of the model file, its first dimensions included; a named dimension is -1.

    Raises InferenceError(MODEL_LOAD_FAILED), a ModelConfigError when an input is no tensor that the protocol has.
    """
    return _description_of(_open_session(_model_file(path, filename), threads=1, is_for_reading=True))


def _model_file(path: Path, filename: str) -> Path:
    name = filename or _MODEL_FILENAME
    file = path / name
    # A model with weights in files of its own may come as a directory that holds a file of the same name.
    file = file / name if file.is_dir() else file
    if not file.is_file():
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"there is no model file {file}",
            field="default_model_filename",
            value=filename,
            remedy=f"call the file {_MODEL_FILENAME}, or name it in default_model_filename",
        )
    return file


def _open_session(file: Path, *, threads: int, is_for_reading: bool = False) -> Any:
    # From 1.29 on the library sends usage data unless told not to before its import; ours serves others' models.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ModuleNotFoundError as cause:
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            "ONNX Runtime is not installed",
            field="backend",
            value="onnxruntime",
            remedy="pip install 'tidegate[onnx]'",
        ) from cause
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if is_for_reading:  # a session that only tells names and shapes need not be a fast one
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # The library's threads spin while they wait, by default: instances then fight each other and the event loop.
    try:
        return onnxruntime.InferenceSession(os.fspath(file), options, providers=_PROVIDERS)
    except Exception as cause:  # the library's exceptions have no common base
        if _is_out_of_memory(cause):
            raise OutOfMemory(f"no memory to load {file}: {cause}") from cause
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"ONNX Runtime cannot load {file}: {cause}",
            field="model",
            value=file.name,
            remedy="check that the file is whole and its operators are known to the installed ONNX Runtime",
        ) from cause


def _description_of(session: Any) -> ModelDescription:
    # Weights that a request could override are no inputs: some exporters declare all of them so.
    inputs = tuple(_spec(argument) for argument in session.get_inputs())
    for spec in inputs:
        if not spec.datatype:
            raise ModelConfigError(
                f"input {spec.name!r} is no tensor of a datatype that requests can have",
                field=f"input.{spec.name}.data_type",
                remedy="export the model with plain tensors as inputs",
            )
    # Outputs that are no tensors, such as lists of maps, are left out: the others can be served.
    outputs = tuple(spec for spec in map(_spec, session.get_outputs()) if spec.datatype)
    return ModelDescription(inputs=inputs, outputs=outputs)


def _spec(argument: Any) -> TensorSpec:
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape)
    return TensorSpec(argument.name, _DATATYPES.get(argument.type, ""), dims)


@contextmanager
def _run_errors() -> Iterator[None]:
    try:
        yield
    except Exception as cause:  # the library's exceptions have no common base
        if _is_out_of_memory(cause):
            raise OutOfMemory(f"no memory for this batch: {cause}") from cause
        raise InferenceError(ErrorCode.MODEL_FAILED, f"the model failed: {cause}") from cause


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _OUT_OF_MEMORY)


def _to_text(name: str, array: Array) -> Array:
    text = np.empty(array.size, dtype=object)
    try:
        text[:] = [str(item, "utf-8") for item in array.ravel()]
    except UnicodeDecodeError as cause:
        raise invalid(
            f"input {name!r} has an element that is not UTF-8, which ONNX strings cannot hold",
            field=f"inputs.{name}.data",
            value=cause.object[:16],
            remedy="send UTF-8 text",
        ) from cause
    return text.reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    encoded = np.empty(array.size, dtype=object)
    encoded[:] = [item.encode() for item in array.ravel()]
    return encoded.reshape(array.shape)


def _bits_of(value: Any) -> Array:
    """A copy of a BF16 value's bits, as the library's memory goes with the value."""
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.empty(shape, dtype=np.uint16)
    bits: Array = np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(value.data_ptr()))
    return bits.reshape(shape).copy()
