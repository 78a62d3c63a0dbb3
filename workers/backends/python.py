"""The `python` backend: a class of the model's own, in files of its version's directory. Runs on any device.

What is loaded is named by the parameter `class` of config.pbtxt, as "module:Class" (default "model:Model"; where
default_model_filename is given, its module). The class is made without arguments, in the instance's own thread, which
also calls:

    load(context)    optional; may take long: read weights, open sessions. See ModelContext.
    infer(batch)     a dict of arrays by input, as the configuration names and shapes them, with the batch dimension
                     where max_batch_size > 0. They are read-only: copy one to change it. Gives a dict of arrays, one
                     for each configured output, of its datatype and with as many rows. BYTES are object arrays of
                     bytes, BF16 is uint16 with its bits.
    unload()         optional

What it raises fails the batch, and is bisected like any model's failure. workers.backend.OutOfMemory (fewer rows would
do) and TransientError (the same batch would do a little later) say more, and an InferenceError is given to the caller
as it is. Modules beside the model's are imported as top-level ones, at the top of a file; they belong to this version
alone, and an import inside a function does not find them. Must not know Kafka, batching or repositories, nor any ML
library.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from schemas.errors import ErrorCode, InferenceError
from workers.backend import Array, Backend, OutOfMemory, is_out_of_memory
from workers.batch import NUMPY_TYPE
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription
from workers.placement import Placement

_CLASS_PARAMETER = "class"
_DEFAULT_MODULE = "model"
_OURS = ("schemas", "store", "gateway", "workers", "local")
_CPU = Placement()
_IMPORTS = threading.Lock()  # the import path is the process's


class ModelContext(msgspec.Struct, frozen=True):
    """What a model's class is told in `load`.

    `path`: its version's directory. `name`, `parameters`: of the configuration, which is there as a whole in `config`.
    `device`: "cpu", or "cuda:<gpu>" as PyTorch would say. `threads`: how many it may use on the CPU.
    """

    path: Path
    name: str
    parameters: dict[str, str]
    config: ModelConfig
    device: str
    threads: int


class PythonBackend:
    """One object of the model's class."""

    def __init__(self) -> None:
        self._model: Any = None  # of a class that is not ours
        self._config: ModelConfig | None = None

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        """See Backend.load."""
        module_name, class_name = _names(config)
        device = f"cuda:{placement.gpu}" if placement.kind == "gpu" else "cpu"
        context = ModelContext(path, config.name, dict(config.parameters), config, device, placement.threads)
        try:
            model_class = _class(path, config, module_name, class_name)
            model = model_class()
            if hasattr(model, "load"):
                model.load(context)
        except InferenceError:
            raise
        except (Exception, SystemExit) as cause:  # whatever the model's own code raises
            if is_out_of_memory(cause):
                raise OutOfMemory(f"no memory to load model {config.name!r}: {cause}") from cause
            raise InferenceError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"{module_name}:{class_name} of model {config.name!r} failed to load: {cause!r}",
                field=f"parameters.{_CLASS_PARAMETER}",
                value=f"{module_name}:{class_name}",
                remedy="correct the model's code",
            ) from cause
        self._model, self._config = model, config

    def warm_up(self) -> None:
        """See Backend.warm_up. What is slow at first, the model's `load` knows and does."""

    def infer(self, inputs: dict[str, Array], outputs: tuple[str, ...]) -> dict[str, Array]:
        """See Backend.infer. Outputs are copied once, as a model may give its inputs or what it keeps."""
        if self._config is None:
            raise RuntimeError("infer before load")
        batch = {name: _read_only(array) for name, array in inputs.items()}
        try:
            result = self._model.infer(batch)
        except InferenceError:
            raise
        except (Exception, SystemExit) as cause:  # whatever the model's own code raises
            if is_out_of_memory(cause):
                raise OutOfMemory(f"no memory for this batch: {cause}") from cause
            raise InferenceError(ErrorCode.MODEL_FAILED, f"the model failed: {cause!r}") from cause
        return _checked(self._config, result, outputs)

    def unload(self) -> None:
        """See Backend.unload. What the model's own `unload` raises is raised, when everything is given back."""
        model, self._model, self._config = self._model, None, None
        if hasattr(model, "unload"):
            model.unload()


def open_backend() -> Backend:
    """A backend that has loaded nothing."""
    return PythonBackend()


def import_library() -> object:
    """See BackendModule."""
    return None


def describe(path: Path, filename: str) -> ModelDescription:
    """There is no file to ask without running it: raises ModelConfigError."""
    raise ModelConfigError(
        "a model of the python backend does not tell its inputs and outputs",
        field="input, output",
        remedy="give them in config.pbtxt",
    )


def _names(config: ModelConfig) -> tuple[str, str]:
    default = config.default_model_filename.removesuffix(".py") or _DEFAULT_MODULE
    text = config.parameters.get(_CLASS_PARAMETER, f"{default}:Model")
    module, _, name = text.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ModelConfigError(
            f"parameter {_CLASS_PARAMETER!r} of model {config.name!r} is {text!r}",
            field=f"parameters.{_CLASS_PARAMETER}",
            value=text,
            remedy='give "module:Class", such as "model:Model" for the class Model in model.py',
        )
    return module, name


def _class(path: Path, config: ModelConfig, module_name: str, class_name: str) -> Any:
    top = module_name.partition(".")[0]
    if not (path / f"{top}.py").is_file() and not (path / top).is_dir():
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"there is no model file {path / f'{top}.py'}",
            field=f"parameters.{_CLASS_PARAMETER}",
            value=f"{module_name}:{class_name}",
            remedy='put the file into the version\'s directory, or name another as "module:Class"',
        )
    with _imports_of(path, config):
        module = importlib.import_module(module_name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type) or not callable(getattr(found, "infer", None)):
        raise ModelConfigError(
            f"{module_name} of model {config.name!r} has no class {class_name!r} with a method infer",
            field=f"parameters.{_CLASS_PARAMETER}",
            value=f"{module_name}:{class_name}",
            remedy="name the class as it is in the file, and give it infer(self, batch)",
        )
    return found


@contextmanager
def _imports_of(path: Path, config: ModelConfig) -> Iterator[None]:
    """Import from a version's directory first, and leave no trace: two versions' modules may have the same names."""
    own = {file.stem for file in path.glob("*.py")} | {file.parent.name for file in path.glob("*/*.py")}
    hidden = sorted(own & {*sys.stdlib_module_names, *_OURS})
    if hidden:
        raise ModelConfigError(
            f"model {config.name!r} has a module {hidden[0]!r}, which Python or this worker has too",
            field="model",
            value=hidden,
            remedy="call the file something else",
        )
    with _IMPORTS:
        others = _taken_out(own)
        writes_bytecode, sys.dont_write_bytecode = not sys.dont_write_bytecode, True  # the directory is not ours
        sys.path.insert(0, str(path))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.dont_write_bytecode = not writes_bytecode
            sys.path.remove(str(path))
            sys.path_importer_cache.pop(str(path), None)
            _taken_out(own)
            sys.modules.update(others)


def _taken_out(own: set[str]) -> dict[str, ModuleType]:
    """What was imported under the top-level names `own`, no longer so."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in own}


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(config: ModelConfig, result: object, outputs: tuple[str, ...]) -> dict[str, Array]:
    if not isinstance(result, dict):
        raise _wrong(config, f"infer gave {type(result).__name__}", "")
    arrays = {}
    for spec in config.outputs:
        if outputs and spec.name not in outputs:
            continue
        value = result.get(spec.name)
        if value is None:
            raise _wrong(
                config, f"infer gave no {spec.name!r}, but {', '.join(map(str, result)) or 'nothing'}", spec.name
            )
        if not isinstance(value, np.ndarray):
            raise _wrong(config, f"infer gave {type(value).__name__} as {spec.name!r}", spec.name)
        if value.dtype != NUMPY_TYPE[spec.datatype]:
            what = f"infer gave {value.dtype} as {spec.name!r}, which is configured as {spec.datatype}"
            raise _wrong(config, what, spec.name)
        arrays[spec.name] = np.array(value, order="C")
    return arrays


def _wrong(config: ModelConfig, what: str, output: str) -> InferenceError:
    return InferenceError(
        ErrorCode.MODEL_FAILED,
        f"model {config.name!r}: {what}",
        field=f"outputs.{output}" if output else "outputs",
        remedy="let infer give a dict of numpy arrays, one for each configured output and of its datatype",
    )
