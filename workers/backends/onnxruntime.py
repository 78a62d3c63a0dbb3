"""The `onnxruntime` backend: ONNX models on CPU and GPU. The only importer of ONNX Runtime, once a model is there.

Where a model runs is said by its placement and its accelerators (execution_providers.py); `optimization.graph.level` is
read as Triton reads it: -1 basic, 1 extended, 2 none, else all. Each instance has a session, with threads or a stream
of its own. Must not know Kafka, batching or repositories.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.model import TensorSpec
from workers.backend import Array, Backend, OutOfMemory, find_model_file, is_out_of_memory, not_installed
from workers.backends.execution_providers import CPU, Provider, execution_providers
from workers.devices import describe_gpu
from workers.engine_cache import EngineKey, digest_of, engine_directory
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription
from workers.placement import Placement
from workers.warm_up import run_zeros

_MODEL_FILENAME = "model.onnx"
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
# Levels of `optimization.graph` as Triton reads them; any other is everything that there is.
_DISABLED_LEVEL = 2
_GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", _DISABLED_LEVEL: "ORT_DISABLE_ALL"}
_GPU = "cuda"  # the library's name of the device
_CPU = Placement()


class OnnxRuntimeBackend:
    """One session. Numeric arrays go in as they are; only the outputs that are asked for are computed."""

    def __init__(self) -> None:
        self._session: Any = None  # onnxruntime has no types
        self._placement = _CPU
        self._config: ModelConfig | None = None
        self._inputs: dict[str, str] = {}  # datatypes by name
        self._outputs: dict[str, str] = {}
        self._staged: dict[str, Any] = {}  # inputs' memory on the GPU, used again for the next batch of the same shape

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """See Backend.load."""
        onnxruntime = _library()
        file = find_model_file(path, config.default_model_filename, [_MODEL_FILENAME])
        providers = execution_providers(
            config,
            placement,
            onnxruntime.get_available_providers(),
            lambda flags: _engines(file, placement.gpu, flags, onnxruntime.__version__),
        )
        session = _open_session(file, _options(onnxruntime, placement.threads, config.graph_level), providers)
        config.check_agrees(_description_of(session))
        self._inputs = {spec.name: spec.datatype for spec in config.inputs}
        self._outputs = {spec.name: spec.datatype for spec in config.outputs}
        self._check_mix(config.name)
        self._session, self._placement, self._config = session, placement, config

    def _check_mix(self, model: str) -> None:
        if "BYTES" in self._inputs.values() and "BF16" in {*self._inputs.values(), *self._outputs.values()}:
            raise ModelConfigError(
                f"model {model!r} has BYTES inputs beside BF16, which ONNX Runtime cannot be given together",
                field="input",
                value=self._inputs,
                remedy="export the model with FP32 or FP16 in place of BF16 at its inputs and outputs",
            )

    def warm_up(self) -> None:
        """See Backend.warm_up. On a GPU, zeros are run once; on the CPU, loading has done all there is to do."""
        if self._placement.kind == "gpu" and self._config is not None:
            run_zeros(self, self._config)

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """See Backend.infer. BYTES must be UTF-8: ONNX strings hold nothing else."""
        names = list(outputs or self._outputs)
        feed = {
            name: _to_text(name, array) if self._inputs[name] == "BYTES" else array for name, array in inputs.items()
        }
        datatypes = {*self._inputs.values(), *(self._outputs[name] for name in names)}
        if "BF16" in datatypes:
            return dict(zip(names, self._run_bfloat16(feed, names), strict=True))
        with _run_errors():
            if self._placement.kind == "gpu" and "BYTES" not in datatypes:
                arrays = self._run_bound(feed, names)
            else:
                arrays = self._session.run(names, feed)
        return {
            name: _to_bytes(array) if self._outputs[name] == "BYTES" else array
            for name, array in zip(names, arrays, strict=True)
        }

    def _run_bound(self, feed: dict[str, Array], names: list[str]) -> list[Array]:
        """Run with inputs and outputs in the GPU's memory: one copy each way, and inputs' memory is used again."""
        from onnxruntime import OrtValue

        binding = self._session.io_binding()
        for name, array in feed.items():
            data = np.ascontiguousarray(array)
            staged = self._staged.get(name)
            if staged is not None and tuple(staged.shape()) == data.shape and data.size:
                staged.update_inplace(data)
            else:
                staged = self._staged[name] = OrtValue.ortvalue_from_numpy(data, _GPU, self._placement.gpu)
            binding.bind_ortvalue_input(name, staged)
        for name in names:
            binding.bind_output(name, _GPU, self._placement.gpu)
        self._session.run_with_iobinding(binding)
        arrays: list[Array] = binding.copy_outputs_to_cpu()
        return arrays

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
        self._staged.clear()


def open_backend() -> Backend:
    """A backend that has loaded nothing."""
    return OnnxRuntimeBackend()


def import_library() -> object:
    """See BackendModule."""
    return _library()


def describe(path: Path, filename: str) -> ModelDescription:
    """Inputs and outputs of the model file, its first dimensions included; a named dimension is -1.

    Raises InferenceError(MODEL_LOAD_FAILED), a ModelConfigError when an input is no tensor that the protocol has.
    """
    onnxruntime = _library()
    file = find_model_file(path, filename, [_MODEL_FILENAME])
    # A session that only tells names and shapes need not be a fast one.
    session = _open_session(file, _options(onnxruntime, 1, _DISABLED_LEVEL), [(CPU, {})])
    return _description_of(session)


def _library() -> Any:
    # From 1.29 on the library sends usage data unless told not to before its import; ours serves others' models.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ModuleNotFoundError as cause:
        raise not_installed("onnxruntime", "ONNX Runtime", "onnx") from cause
    return onnxruntime


def _options(onnxruntime: Any, threads: int, graph_level: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # The library's threads spin while they wait, by default: instances then fight each other and the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = _GRAPH_LEVELS.get(graph_level, "ORT_ENABLE_ALL")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return options


def _open_session(file: Path, options: Any, providers: list[Provider]) -> Any:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(os.fspath(file), options, providers=providers)
    except Exception as cause:  # the library's exceptions have no common base
        if is_out_of_memory(cause):
            raise OutOfMemory(f"no memory to load {file}: {cause}") from cause
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"ONNX Runtime cannot load {file}: {cause}",
            field="model",
            value=file.name,
            remedy="check that the file is whole and its operators are known to the installed ONNX Runtime",
        ) from cause
    # A provider whose own libraries cannot be loaded is left out with a line in the log, and the CPU does its work.
    missing = [name for name, _ in providers if name not in session.get_providers()]
    if missing:
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"ONNX Runtime could not start {', '.join(missing)} for {file}",
            field="instance_group.kind",
            value=missing[0],
            remedy="install the CUDA, cuDNN and TensorRT versions that this ONNX Runtime was built for",
        )
    session.disable_fallback()
    return session


def _engines(file: Path, gpu: int, flags: dict[str, str], version: str) -> Path:
    """The directory for TensorRT's engines of a model; weights in files of their own lie beside it."""
    try:
        tensorrt = metadata.version("tensorrt")
    except metadata.PackageNotFoundError:
        tensorrt = "of the system"
    files = [beside for beside in file.parent.iterdir() if beside.is_file()]
    runtime = f"onnxruntime {version}, tensorrt {tensorrt}"
    return engine_directory(EngineKey(describe_gpu(gpu), runtime, digest_of(files), flags))


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
        if is_out_of_memory(cause):
            raise OutOfMemory(f"no memory for this batch: {cause}") from cause
        raise InferenceError(ErrorCode.MODEL_FAILED, f"the model failed: {cause}") from cause


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
