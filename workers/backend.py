"""Backend: what runs a model. The protocol, how one is opened by name, and the failures it tells apart.

Must not know Kafka, batches' requests, repositories, nor any ML library: each of those is imported by its own module in
workers/backends, when that is opened.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from schemas.errors import ErrorCode, InferenceError
from workers.model_config import ModelConfig, ModelDescription, check_backend
from workers.placement import Placement

Array = npt.NDArray[Any]  # of any datatype: which one is said by the model's configuration
_CPU = Placement()


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
        OutOfMemory. After an error nothing is held.
        """

    def warm_up(self) -> None:
        """Do what makes the first inference slow. Raises as `infer` does."""

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


def _module(name: str) -> BackendModule:
    check_backend("", name)
    module: Any = importlib.import_module(f"workers.backends.{name}")
    backend_module: BackendModule = module
    return backend_module
