"""Backend: what runs a model. The protocol, how one is opened by name, and the failures it tells apart.

Must not know Kafka, batches' requests, repositories, nor any ML library: each of those is imported by its own module in
workers/backends, when that is opened.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from schemas.errors import ErrorCode, InferenceError
from workers.model_config import ModelConfig, ModelDescription, check_backend
from workers.placement import Placement

Array = npt.NDArray[Any]  # of any datatype: which one is said by the model's configuration
_CPU = Placement()
# As ONNX Runtime, PyTorch, CUDA, cuBLAS, cuDNN and TensorRT put it, in lower case.
_OUT_OF_MEMORY = (
    "failed to allocate memory",
    "bad_alloc",
    "bad allocation",
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",
    "cudaerrormemoryallocation",
)


class OutOfMemory(InferenceError):  # noqa: N818 - the name says what is so, as callers read it
    """The backend had no memory for this call; a smaller batch, or the same one later, may well pass."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.MODEL_FAILED, message, remedy="send fewer rows in one request, or give more memory")


class TransientError(InferenceError):
    """A failure that is not the batch's: the same batch may pass a little later. A model's own code may raise it."""

    def __init__(self, message: str, *, remedy: str = "send the request again a little later") -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, remedy=remedy)


class Backend(Protocol):
    """One instance of one model. Every method blocks and is called from the instance's own thread, one at a time.

    Arrays have the leading dimension that is the batch (max_batch_size > 0), or exactly the model's shape (0). BYTES
    are object arrays of `bytes`, BF16 arrays are uint16 with the bits; what is which is said by the configuration.
    """

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """Make the model of a version's directory ready to run there. `config` is complete.

        Raises InferenceError(MODEL_LOAD_FAILED), a ModelConfigError where configuration and model file differ, or
        OutOfMemory. After an error nothing is held, and `load` may be called again.
        """

    def warm_up(self) -> None:
        """Do what makes the first inference slow and needs no samples (those are run by workers/warm_up.py).

        Raises as `infer` does.
        """

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """Run one batch and give the named outputs (none named: all).

        Inputs may be read-only views and are only read during the call. Outputs are the caller's. Raises
        InferenceError(MODEL_FAILED), InferenceError(INVALID_REQUEST) for values that the model's datatype has no place
        for, OutOfMemory, or TransientError.
        """

    def unload(self) -> None:
        """Give back everything; idempotent, and fine before `load`."""


class BackendModule(Protocol):
    """What each module in workers/backends offers."""

    def open_backend(self) -> Backend:
        """A backend that holds nothing yet."""

    def import_library(self) -> object:
        """Import what the backend runs on, if anything; some take seconds. Raises InferenceError(MODEL_LOAD_FAILED)."""

    def describe(self, path: Path, filename: str) -> ModelDescription:
        """What the model file in a version's directory says of itself; `filename` '' is the backend's usual one."""


def open_backend(name: str) -> Backend:
    """A new backend, nothing loaded. Raises ModelConfigError, listing those there are, for an unknown name."""
    return _module(name).open_backend()


def describe_model(name: str, path: Path, *, filename: str = "") -> ModelDescription:
    """What backend `name` finds in the model file of a version's directory; imports the backend's library.

    Raises ModelConfigError for an unknown backend or a model that cannot be served, InferenceError(MODEL_LOAD_FAILED)
    for a file that cannot be read.
    """
    return _module(name).describe(path, filename)


def find_model_file(path: Path, filename: str, usual: Sequence[str]) -> Path:
    """The model file in a version's directory: `filename`, or else the first of the `usual` names that is there.

    A model with weights in files of its own may come as a directory that holds a file of the same name. Raises
    InferenceError(MODEL_LOAD_FAILED).
    """
    for name in [filename] if filename else usual:
        file = path / name
        file = file / name if file.is_dir() else file
        if file.is_file():
            return file
    raise InferenceError(
        ErrorCode.MODEL_LOAD_FAILED,
        f"there is no model file {path / (filename or usual[0])}",
        field="default_model_filename",
        value=filename,
        remedy=f"call the file {' or '.join(usual)}, or name it in default_model_filename",
    )


def not_installed(backend: str, library: str, extra: str) -> InferenceError:
    """The error for a library that is not there; `extra` is that of our package which brings it."""
    return InferenceError(
        ErrorCode.MODEL_LOAD_FAILED,
        f"{library} is not installed",
        field="backend",
        value=backend,
        remedy=f"pip install 'tidegate[{extra}]'",
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a library's error says that there was no memory. They have no common type for it, only words."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _OUT_OF_MEMORY)


def preimport(name: str) -> None:
    """Begin to import a backend's library, in a thread of its own: best while the model's files are fetched.

    Whatever is wrong is told by the load that follows. Raises ModelConfigError for an unknown backend.
    """
    threading.Thread(target=_quietly, args=(_module(name).import_library,), name=f"import {name}").start()


def _quietly(call: Callable[[], object]) -> None:
    with suppress(Exception):
        call()


def _module(name: str) -> BackendModule:
    check_backend("", name)
    module: Any = importlib.import_module(f"workers.backends.{name}")
    backend_module: BackendModule = module
    return backend_module
