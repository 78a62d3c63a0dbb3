"""Engine: a TensorRT engine, loaded or built from ONNX, and what it says of its inputs and outputs.

Versions 10 and 11. What is built from ONNX has the types of the ONNX file, and is kept on disk (engine_cache.py). The
libraries are handed in by the one file that imports them (tensorrt.py), and Any: none has types where it is absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from workers.backend import OutOfMemory, is_out_of_memory
from workers.backends.optimization_profile import optimization_profile, trtexec_text
from workers.devices import describe_gpu
from workers.engine_cache import EngineKey, cached_engine, digest_of, engine_directory
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription

_ENGINE_FILENAME = "engine.plan"
_WORKSPACE_PARAMETER = "max_workspace_size_bytes"
_DATATYPES = {  # TensorRT's names of its types; others cannot be sent
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "BOOL": "BOOL",
}


class Library(NamedTuple):
    """What is imported, and the log that collects what goes wrong. Any: none of it has types where it is absent."""

    tensorrt: Any
    cuda: Any
    log: Any

    def call(self, function: str, *arguments: Any) -> Any:
        """One call of CUDA's runtime; its result, if it has one. Raises OutOfMemory or InferenceError(MODEL_FAILED)."""
        error, *results = getattr(self.cuda, function)(*arguments)
        if int(error) != 0:
            message = f"CUDA's {function} failed: {error.name}"
            raise OutOfMemory(message) if is_out_of_memory(Exception(error.name)) else failed(message)
        return results[0] if results else None


def deserialized(library: Library, plan: bytes) -> Any:
    """The engine, None where it was made for something else."""
    return library.tensorrt.Runtime(library.log).deserialize_cuda_engine(plan)


def built(library: Library, file: Path, config: ModelConfig, gpu: int) -> Any:
    """The engine of an ONNX file, from the cache or built into it."""
    profile = optimization_profile(config)
    flags = {
        which: trtexec_text({name: getattr(profile[name], which) for name in profile})
        for which in ("min", "opt", "max")
    }
    flags["workspace"] = config.parameters.get(_WORKSPACE_PARAMETER, "")
    files = [beside for beside in file.parent.iterdir() if beside.is_file()]  # weights may be in files of their own
    key = EngineKey(describe_gpu(gpu), f"tensorrt {library.tensorrt.__version__}", digest_of(files), flags)
    cached = engine_directory(key) / _ENGINE_FILENAME
    engine = deserialized(library, cached_engine(cached, lambda: _build(library, file, config)))
    if engine is None:  # what is in the cache is of no use; make it anew, once
        cached.unlink(missing_ok=True)
        engine = deserialized(library, cached_engine(cached, lambda: _build(library, file, config)))
    return engine


def _build(library: Library, file: Path, config: ModelConfig) -> bytes:
    onnx = parsed(library, file)
    builder = onnx.builder
    build = builder.create_builder_config()
    workspace = config.parameters.get(_WORKSPACE_PARAMETER, "")
    if workspace:
        if not workspace.isdecimal():
            raise ModelConfigError(
                f"parameter {_WORKSPACE_PARAMETER!r} of model {config.name!r} is {workspace!r}",
                field=f"parameters.{_WORKSPACE_PARAMETER}",
                value=workspace,
                remedy="give a number of bytes",
            )
        build.set_memory_pool_limit(library.tensorrt.MemoryPoolType.WORKSPACE, int(workspace))
    profile = builder.create_optimization_profile()
    for name, shapes in optimization_profile(config).items():
        profile.set_shape(name, shapes.min, shapes.opt, shapes.max)
    build.add_optimization_profile(profile)
    engine = builder.build_serialized_network(onnx.network, build)
    if engine is None:
        raise unloadable(library, file, "cannot be built into an engine")
    return bytes(engine)


class Parsed(NamedTuple):
    """An ONNX file as TensorRT's network. The parser has the weights: it must live as long as they are used."""

    builder: Any
    network: Any
    parser: Any


def parsed(library: Library, file: Path) -> Parsed:
    """Read an ONNX file; nothing is built yet. Raises InferenceError(MODEL_LOAD_FAILED) with the parser's words."""
    trt = library.tensorrt
    builder = trt.Builder(library.log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, library.log)
    if not parser.parse_from_file(str(file)):
        library.log.errors += [str(parser.get_error(index)) for index in range(parser.num_errors)]
        raise unloadable(library, file, "cannot be read by TensorRT")
    return Parsed(builder, network, parser)


def description_of_engine(trt: Any, engine: Any) -> ModelDescription:
    """Inputs and outputs of an engine; a size that its profile leaves free is -1."""
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    for name in (engine.get_tensor_name(index) for index in range(engine.num_io_tensors)):
        datatype = _DATATYPES.get(engine.get_tensor_dtype(name).name, "")
        spec = TensorSpec(name, datatype, tuple(engine.get_tensor_shape(name)))
        (inputs if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else outputs).append(spec)
    return ModelDescription(tuple(inputs), tuple(outputs))


def check_tensors(trt: Any, engine: Any, model: str) -> None:
    """Raise ModelConfigError for an input or output that cannot come as plain bytes of one of our datatypes."""
    for name in (engine.get_tensor_name(index) for index in range(engine.num_io_tensors)):
        is_plain = engine.get_tensor_location(name) == trt.TensorLocation.DEVICE
        is_plain = is_plain and engine.get_tensor_format(name) == trt.TensorFormat.LINEAR
        if not is_plain or engine.get_tensor_dtype(name).name not in _DATATYPES:
            raise ModelConfigError(
                f"tensor {name!r} of model {model!r} is a shape tensor, or of a format or type that cannot be sent",
                field=f"input, output: {name}",
                value=engine.get_tensor_dtype(name).name,
                remedy="build the engine with linear formats and plain types at its inputs and outputs",
            )


def spec_of(tensor: Any) -> TensorSpec:
    """An input or output of a network."""
    return TensorSpec(tensor.name, _DATATYPES.get(tensor.dtype.name, ""), tuple(tensor.shape))


def failed(message: str) -> InferenceError:
    """The error of a batch."""
    return InferenceError(ErrorCode.MODEL_FAILED, message)


def unloadable(library: Library, file: Path, what: str) -> InferenceError:
    """The error of a model file, with what TensorRT said; OutOfMemory where it spoke of memory."""
    errors = "; ".join(library.log.errors)
    if is_out_of_memory(Exception(errors)):
        return OutOfMemory(f"no memory to load {file}: {errors}")
    return InferenceError(
        ErrorCode.MODEL_LOAD_FAILED,
        f"model file {file} {what} ({library.tensorrt.__version__}): {errors}",
        field="model",
        value=file.name,
        remedy="build the engine with this TensorRT on this kind of GPU, or put model.onnx in its place",
    )
