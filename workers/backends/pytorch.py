"""The `pytorch` backend: TorchScript (.pt), exported programs and AOTInductor packages (.pt2). Alone imports torch.

Parameters of config.pbtxt: `autocast` ("fp16" or "bf16"), `intra_op_thread_count`. BF16 tensors come and go as uint16
bits. A TorchScript model may keep state between calls; each instance has its own. TorchScript compiles a model in its
first two runs for a shape: a warm-up sample with count: 2 takes that out of the first requests.

Threads: PyTorch's CPU kernels (OpenMP, MKL, oneDNN) take their number of threads from the thread that calls them, once
that one has been told; `load` tells its own, so that instances in different threads have different numbers. A compiled
package brings the number that it was compiled with. Must not know Kafka, batching or repositories.
"""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.model import TensorSpec
from workers.backend import Array, Backend, OutOfMemory, find_model_file, is_out_of_memory, not_installed
from workers.backends import torch_signature as signatures
from workers.backends.torch_program import DATATYPES, Program, device_name, load_program
from workers.backends.torch_signature import Argument
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription
from workers.placement import Placement
from workers.warm_up import run_zeros

_MODEL_FILENAMES = ("model.pt", "model.pt2")
_AUTOCAST = {"fp16": "float16", "bf16": "bfloat16"}
_CPU = Placement()
_THREADS = threading.Lock()


class PyTorchBackend:
    """One model on one device; on a GPU with a stream and page-locked memory of its own."""

    def __init__(self) -> None:
        self._torch: Any = None  # Any: mypy must give the same answer with and without the library
        self._config: ModelConfig | None = None
        self._program: Program | None = None
        self._inputs: dict[str, int] = {}
        self._outputs: dict[str, int | str] = {}
        self._types: dict[str, Any] = {}  # torch's, by input or output
        self._placement = _CPU
        self._stream: Any = None
        self._staging: dict[str, Any] = {}
        self._autocast = ""
        self._least_rows = 0

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """See Backend.load."""
        self._torch = _library()
        self._placement = placement
        file = find_model_file(path, config.default_model_filename, _MODEL_FILENAMES)
        try:
            self._load(file, config)
        except Exception:
            self.unload()
            raise

    def _load(self, file: Path, config: ModelConfig) -> None:
        torch, placement = self._torch, self._placement
        kind = signatures.format_of(file)
        self._autocast = _autocast_of(config, kind)
        self._types = {
            spec.name: getattr(torch, _torch_name(config, spec)) for spec in (*config.inputs, *config.outputs)
        }
        if placement.kind == "gpu":
            _check_gpu(torch, config, placement.gpu)
            self._stream = torch.cuda.Stream(placement.gpu)
        with _THREADS:  # what is set becomes this thread's own when it asks, so nobody may set another in between
            torch.set_num_threads(placement.threads)
            torch.get_num_threads()
        program = load_program(torch, file, kind, placement)
        self._inputs = signatures.bind_inputs(config, program.signature)
        self._outputs = signatures.bind_outputs(config, program.signature)
        signatures.check_agrees(config, program.signature, self._inputs, self._outputs)
        self._program, self._config = program, config

    def warm_up(self) -> None:
        """See Backend.warm_up. On a GPU, zeros are run once; on the CPU, samples of the configuration do more."""
        if self._placement.kind == "gpu" and self._config is not None:
            run_zeros(self, self._config)

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """See Backend.infer. Inputs are copied once, as a model may write to its arguments or keep them."""
        if self._program is None or self._config is None:
            raise RuntimeError("infer before load")
        names = outputs or tuple(self._outputs)
        if not self._config.max_batch_size or not inputs:
            return self._run(inputs, names)
        rows = len(next(iter(inputs.values())))
        if rows >= self._least_rows:
            try:
                return self._run(inputs, names)
            except InferenceError as error:
                least = signatures.least_rows(error.message)
                if least <= rows:
                    raise
                self._least_rows = least
        # A compiled package with a free batch size takes two rows or more, as compiling assumes so.
        padded = {name: _with_rows(array, self._least_rows) for name, array in inputs.items()}
        return {name: array[:rows] for name, array in self._run(padded, names).items()}

    def _run(self, inputs: dict[str, Array], names: tuple[str, ...]) -> dict[str, Array]:
        assert self._program is not None
        assert self._config is not None
        with self._running():
            positional, keywords = self._arguments(self._program.signature.arguments, inputs)
            result = self._program.call(*positional, **keywords)
            found = signatures.pick(self._config.name, result, self._outputs, names)
            tensors = [self._download(name, value) for name, value in zip(names, found, strict=True)]
            if self._stream is not None:
                self._stream.synchronize()
            return {name: self._array(tensor) for name, tensor in zip(names, tensors, strict=True)}

    @contextmanager
    def _running(self) -> Iterator[None]:
        torch = self._torch
        try:
            with ExitStack() as stack:
                if self._stream is not None:
                    stack.enter_context(torch.cuda.device(self._placement.gpu))
                    stack.enter_context(torch.cuda.stream(self._stream))
                stack.enter_context(torch.inference_mode())
                if self._autocast:
                    device = "cpu" if self._stream is None else "cuda"
                    stack.enter_context(torch.autocast(device, dtype=getattr(torch, self._autocast)))
                yield
        except InferenceError:
            raise
        except Exception as cause:  # whatever a model raises
            if is_out_of_memory(cause):
                if self._stream is not None:
                    torch.cuda.empty_cache()  # so that the halves of the batch find room in one piece
                raise OutOfMemory(f"no memory for this batch: {cause}") from cause
            raise InferenceError(ErrorCode.MODEL_FAILED, f"the model failed: {cause}") from cause

    def _arguments(self, arguments: tuple[Argument, ...], inputs: dict[str, Array]) -> tuple[list[Any], dict[str, Any]]:
        by_position = {self._inputs[name]: (name, array) for name, array in inputs.items()}
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for position, argument in enumerate(arguments):
            if position not in by_position:  # an optional one: the model has a default
                continue
            name, array = by_position[position]
            value = _scalar(name, array) if argument.scalar else self._upload(name, array)
            if argument.is_keyword:
                keywords[argument.name] = value
            else:
                positional.append(value)
        return positional, keywords

    def _upload(self, name: str, array: Array) -> Any:
        """The input on the device, in memory that is the model's. `array` is only read."""
        torch, dtype = self._torch, self._types[name]
        if self._stream is None:
            tensor = torch.empty(array.shape, dtype=dtype)
            np.copyto(self._array(tensor), array)
            return tensor
        size_bytes = array.size * dtype.itemsize
        staging = self._staging.get(name)
        if staging is None or staging.numel() < size_bytes:
            staging = self._staging[name] = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        tensor = staging[:size_bytes].view(dtype).view(array.shape)
        np.copyto(self._array(tensor), array)
        # Free for the next batch when this one ends: `infer` waits for the stream.
        return tensor.to(device_name(self._placement), non_blocking=True)

    def _download(self, name: str, value: Any) -> Any:
        """The output in the host's memory, for the caller to keep; whole when the stream has been waited for.

        Always a copy: a model may give its input, its weights or its state.
        """
        torch = self._torch
        if not isinstance(value, torch.Tensor):
            raise InferenceError(
                ErrorCode.MODEL_FAILED,
                f"output {name!r} is no tensor but {type(value).__name__}",
                field=f"outputs.{name}",
                remedy="let the model give a tensor, a tuple of tensors or a dict of them",
            )
        # Autocast leaves results in its own type; callers are promised the configured one.
        dtype = self._types[name] if self._autocast else value.dtype
        is_on_gpu = self._stream is not None
        return torch.empty(value.shape, dtype=dtype, pin_memory=is_on_gpu).copy_(value, non_blocking=is_on_gpu)

    def _array(self, tensor: Any) -> Array:
        """A numpy view of a tensor in the host's memory; numpy has no BF16, so that its bits are seen."""
        is_bfloat16 = tensor.dtype == self._torch.bfloat16
        array: Array = (tensor.view(self._torch.uint16) if is_bfloat16 else tensor).numpy()
        return array

    def unload(self) -> None:
        """See Backend.unload."""
        had_program, was_on_gpu = self._program is not None, self._stream is not None
        self._program = self._config = self._stream = None
        self._least_rows = 0
        self._staging.clear()
        if had_program:
            gc.collect()  # an exported program refers to itself: without this its weights would stay for a while
        if was_on_gpu:
            self._torch.cuda.empty_cache()


def open_backend() -> Backend:
    """A backend that has loaded nothing."""
    return PyTorchBackend()


def import_library() -> object:
    """See BackendModule."""
    return _library()


def describe(path: Path, filename: str) -> ModelDescription:
    """Inputs and outputs of the model file: an exported program tells all, TorchScript the names of its arguments.

    What is not known has datatype '' and shape (); results without names are called OUTPUT__0 and so on. Raises
    InferenceError(MODEL_LOAD_FAILED).
    """
    torch = _library()
    file = find_model_file(path, filename, _MODEL_FILENAMES)
    return load_program(torch, file, signatures.format_of(file), None).signature.description()


def _library() -> Any:
    # Compiled packages compute nonsense, or read beyond their inputs, for shapes and types that they were not made for,
    # unless they are told to look before their library is loaded.
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
    try:
        import torch.export.passes
    except ModuleNotFoundError as cause:
        raise not_installed("pytorch", "PyTorch", "torch") from cause
    # TorchScript is served because models are there in it; that nobody should make new ones is not the operator's news.
    warnings.filterwarnings("ignore", message="`torch.jit.load` is", category=FutureWarning)
    return torch


def _check_gpu(torch: Any, config: ModelConfig, gpu: int) -> None:
    if not torch.cuda.is_available() or gpu >= torch.cuda.device_count():
        raise ModelConfigError(
            f"model {config.name!r} is to run on GPU {gpu}, PyTorch {torch.__version__} sees "
            f"{torch.cuda.device_count()} of them",
            field="instance_group.kind",
            value="gpu",
            remedy="install a PyTorch for this driver's CUDA, or use KIND_CPU",
        )


def _autocast_of(config: ModelConfig, kind: signatures.Format) -> str:
    text = config.parameters.get("autocast", "")
    if not text:
        return ""
    if text not in _AUTOCAST or kind == "compiled":
        raise ModelConfigError(
            f"parameter 'autocast' of model {config.name!r} is {text!r}"
            + (", its file is compiled and keeps its types" if kind == "compiled" else ""),
            field="parameters.autocast",
            value=text,
            remedy="compile the model under autocast" if kind == "compiled" else f"use {' or '.join(_AUTOCAST)}",
        )
    return _AUTOCAST[text]


def _torch_name(config: ModelConfig, spec: TensorSpec) -> str:
    if spec.datatype not in DATATYPES:
        raise ModelConfigError(
            f"{spec.name!r} of model {config.name!r} is {spec.datatype}, which PyTorch has no tensors of",
            field=f"{spec.name}.data_type",
            value=spec.datatype,
            remedy="turn text into numbers before the model, or use the python backend",
        )
    return DATATYPES[spec.datatype]


def _scalar(name: str, array: Array) -> Any:
    if array.size != 1:
        raise invalid(
            f"input {name!r} is one number for the model, and has {array.size}",
            field=f"inputs.{name}.shape",
            value=list(array.shape),
            remedy="send one element",
        )
    return array.reshape(-1)[0].item()


def _with_rows(array: Array, rows: int) -> Array:
    """The array with that many rows or its own: the last one is repeated."""
    padded = np.zeros((max(rows, len(array)), *array.shape[1:]), array.dtype)
    padded[: len(array)] = array
    padded[len(array) :] = array[-1:] if len(array) else 0
    return padded
