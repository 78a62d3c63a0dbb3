"""The `tensorrt` backend: TensorRT engines (model.plan), or ONNX models made into one (model.onnx). GPU only.

The one importer of TensorRT and of CUDA's runtime; versions 10 and 11 of the former. An engine that is built from ONNX
has the types of the ONNX file and is kept on disk (engine_cache.py); its shapes are said by optimization_profile.py. It
may be built on one start in minutes and loaded on the next in seconds. Parameters of config.pbtxt: profile_min_shapes,
profile_opt_shapes, profile_max_shapes, max_workspace_size_bytes. Each instance has a stream, page-locked memory and
memory on the GPU of its own. Must not know Kafka, batching or repositories.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import ErrorCode, InferenceError
from workers.backend import Array, Backend, OutOfMemory, find_model_file, is_out_of_memory, not_installed
from workers.backends.tensorrt_engine import (
    Library,
    built,
    check_tensors,
    description_of_engine,
    deserialized,
    failed,
    parsed,
    spec_of,
    unloadable,
)
from workers.batch import NUMPY_TYPE
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription
from workers.placement import Placement
from workers.warm_up import run_zeros

_MODEL_FILENAMES = ("model.plan", "model.onnx")
_CPU = Placement()


class _Buffer:
    """Page-locked memory in the host and as much on the GPU, for one tensor; grows, and shrinks with `free` only."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._size_bytes = 0
        self._host = 0
        self.device = 0

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The host's side as an array of that shape, for as long as no larger one is asked for."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if size_bytes > self._size_bytes or not self._host:
            self.free()
            self._host = int(self._library.call("cudaMallocHost", max(1, size_bytes)))
            self.device = int(self._library.call("cudaMalloc", max(1, size_bytes)))
            self._size_bytes = size_bytes
        raw = (ctypes.c_uint8 * size_bytes).from_address(self._host)
        array: Array = np.ctypeslib.as_array(raw).view(dtype).reshape(shape)
        return array

    def copy(self, array: Array, direction: str, stream: Any) -> None:
        """Begin to copy what `array`, a view of this buffer, shows: "HostToDevice" or "DeviceToHost"."""
        ends = (self.device, self._host) if direction == "HostToDevice" else (self._host, self.device)
        kind = getattr(self._library.cuda.cudaMemcpyKind, f"cudaMemcpy{direction}")
        if array.nbytes:
            self._library.call("cudaMemcpyAsync", *ends, array.nbytes, kind, stream)

    def free(self) -> None:
        """Give both sides back; idempotent."""
        host, device = self._host, self.device
        self._host = self.device = self._size_bytes = 0
        if host:
            self._library.call("cudaFreeHost", host)
        if device:
            self._library.call("cudaFree", device)


class TensorRtBackend:
    """One engine with one execution context."""

    def __init__(self) -> None:
        self._library: Library | None = None
        self._placement = _CPU
        self._config: ModelConfig | None = None
        self._engine: Any = None
        self._context: Any = None
        self._stream: Any = None
        self._buffers: dict[str, _Buffer] = {}
        self._outputs: dict[str, str] = {}  # all of the engine's, with their datatypes
        self._types: dict[str, np.dtype[Any]] = {}

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """See Backend.load. Raises ModelConfigError for a placement that is no GPU."""
        self._library = _library()
        self._placement = placement
        if placement.kind != "gpu":
            raise ModelConfigError(
                f"model {config.name!r} is a TensorRT engine, which runs on a GPU only",
                field="instance_group.kind",
                value=placement.kind,
                remedy="use KIND_GPU on a worker with a GPU, or serve the ONNX model with backend onnxruntime",
            )
        try:
            self._load(path, config)
        except Exception:
            self.unload()
            raise

    def _load(self, path: Path, config: ModelConfig) -> None:
        assert self._library is not None
        library = self._library
        library.call("cudaSetDevice", self._placement.gpu)
        file = find_model_file(path, config.default_model_filename, _MODEL_FILENAMES)
        if file.suffix == ".onnx":
            self._engine = built(library, file, config, self._placement.gpu)
        else:
            self._engine = deserialized(library, file.read_bytes())
        if self._engine is None:
            raise unloadable(library, file, "is no engine for this GPU and this TensorRT")
        check_tensors(library.tensorrt, self._engine, config.name)
        description = description_of_engine(library.tensorrt, self._engine)
        config.check_agrees(description)
        self._outputs = {spec.name: spec.datatype for spec in description.outputs}
        tensors = (*description.inputs, *description.outputs)
        self._types = {spec.name: NUMPY_TYPE[spec.datatype] for spec in tensors}
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise unloadable(library, file, "cannot be given memory to run in")
        self._stream = library.call("cudaStreamCreateWithFlags", library.cuda.cudaStreamNonBlocking)
        self._buffers = {spec.name: _Buffer(library) for spec in tensors}
        self._config = config

    def warm_up(self) -> None:
        """See Backend.warm_up: zeros are run once."""
        if self._config is not None:
            run_zeros(self, self._config)

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """See Backend.infer."""
        if self._library is None or self._config is None:
            raise RuntimeError("infer before load")
        names = outputs or tuple(spec.name for spec in self._config.outputs)
        self._library.log.errors.clear()
        self._library.call("cudaSetDevice", self._placement.gpu)
        for name, array in inputs.items():
            if not self._context.set_input_shape(name, array.shape):
                raise self._refused(f"input {name!r} of shape {list(array.shape)} is outside of the engine's profile")
            staged = self._buffers[name].view(array.shape, self._types[name])
            np.copyto(staged, array)
            self._buffers[name].copy(staged, "HostToDevice", self._stream)
            self._context.set_tensor_address(name, self._buffers[name].device)
        results = self._result_views()
        if not self._context.execute_async_v3(int(self._stream)):
            raise self._refused("TensorRT could not run the batch")
        for name in names:
            self._buffers[name].copy(results[name], "DeviceToHost", self._stream)
        self._library.call("cudaStreamSynchronize", self._stream)
        return {name: results[name].copy() for name in names}

    def _result_views(self) -> dict[str, Array]:
        """Memory for every output: an engine computes all of them, whichever are asked for."""
        views = {}
        for name in self._outputs:
            shape = tuple(self._context.get_tensor_shape(name))
            if any(size < 0 for size in shape):
                raise self._refused(f"output {name!r} has a shape {list(shape)} that depends on the data")
            views[name] = self._buffers[name].view(shape, self._types[name])
            self._context.set_tensor_address(name, self._buffers[name].device)
        return views

    def _refused(self, what: str) -> InferenceError:
        assert self._library is not None
        errors = "; ".join(self._library.log.errors)
        if is_out_of_memory(Exception(errors)):
            return OutOfMemory(f"{what}: {errors}")
        return failed(f"{what}: {errors}" if errors else what)

    def unload(self) -> None:
        """See Backend.unload."""
        self._config = self._context = self._engine = None
        for buffer in self._buffers.values():
            buffer.free()
        self._buffers.clear()
        stream, self._stream = self._stream, None
        if stream is not None and self._library is not None:
            self._library.call("cudaStreamDestroy", stream)


def open_backend() -> Backend:
    """A backend that has loaded nothing."""
    return TensorRtBackend()


def import_library() -> object:
    """See BackendModule."""
    return _library()


def describe(path: Path, filename: str) -> ModelDescription:
    """Inputs and outputs of the engine, or of the ONNX file without building it. Needs a GPU.

    Raises InferenceError(MODEL_LOAD_FAILED).
    """
    library = _library()
    file = find_model_file(path, filename, _MODEL_FILENAMES)
    if file.suffix == ".onnx":
        onnx = parsed(library, file)
        network = onnx.network
        return ModelDescription(
            tuple(spec_of(network.get_input(index)) for index in range(network.num_inputs)),
            tuple(spec_of(network.get_output(index)) for index in range(network.num_outputs)),
        )
    engine = deserialized(library, file.read_bytes())
    if engine is None:
        raise unloadable(library, file, "is no engine for this GPU and this TensorRT")
    return description_of_engine(library.tensorrt, engine)


def _library() -> Library:
    try:
        import tensorrt
        from cuda.bindings import runtime
    except ModuleNotFoundError as cause:
        raise not_installed("tensorrt", "TensorRT", "tensorrt") from cause
    error, count = runtime.cudaGetDeviceCount()
    if int(error) != 0 or not count:
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"TensorRT needs a GPU, and CUDA finds none: {error.name}",
            field="backend",
            value="tensorrt",
            remedy="give the worker a GPU, or serve the ONNX model with backend onnxruntime",
        )

    class Log(tensorrt.ILogger):  # type: ignore[misc]  # the library has no types
        """Keeps what TensorRT says went wrong, as its functions only say that something did."""

        def __init__(self) -> None:
            tensorrt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (tensorrt.ILogger.Severity.ERROR, tensorrt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)

    return Library(tensorrt, runtime, Log())
