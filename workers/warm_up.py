"""Warm-up: the samples that a configuration names, run before a model is ready. Knows numpy, and backends as such.

Samples are given as callers would send them, and reach the backend in the shapes that the model takes. Where none are
configured, backends on a GPU run zeros once (`run_zeros`): CUDA loads its code at the first use, which is then not the
first request's. Must not know any ML library.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import structlog

from schemas.errors import ErrorCode, InferenceError
from schemas.tensor import iter_bytes_elements
from workers.backend import Array, Backend, OutOfMemory
from workers.batch import NUMPY_TYPE
from workers.model_config import ModelConfig, ModelConfigError, WarmUp, WarmUpInput, reshaped

_LOG = structlog.get_logger(__name__)
_SEED = 0  # every start warms up with the same numbers
_RANDOM_BELOW = 128  # random whole numbers fit every datatype, and may well be indices


def run_warm_ups(backend: Backend, config: ModelConfig, directory: Path) -> None:
    """Run each sample of the configuration in order, `count` times (0: once).

    `directory` is `<model>/warmup`, with samples in files: raw little-endian elements, each BYTES element behind its
    length in 4 bytes. Rows of a batch repeat the sample. Raises ModelConfigError for a sample that does not fit the
    model or its file, InferenceError(MODEL_LOAD_FAILED) when the model fails, OutOfMemory.
    """
    for sample in config.warm_ups:
        arrays = {field.name: _array(config, sample, field, directory) for field in sample.inputs}
        for spec in config.inputs:
            if spec.name not in arrays and not spec.optional:
                raise _error(config, sample, spec.name, "", "is missing", "give every input that is not optional")
        for _ in range(max(1, sample.count)):
            try:
                backend.infer(arrays, ())
            except OutOfMemory:
                raise
            except InferenceError as cause:
                raise InferenceError(
                    ErrorCode.MODEL_LOAD_FAILED,
                    f"model {config.name!r} fails on its warm-up sample {sample.name!r}: {cause}",
                    field="model_warmup",
                    value=sample.name,
                    remedy="correct the sample or the model",
                ) from cause


def run_zeros(backend: Backend, config: ModelConfig) -> None:
    """Run one row of zeros, free dimensions 1, unless samples are configured. For backends whose first use is slow.

    A model may have reasons to refuse zeros or ones: that is logged, not raised. Raises OutOfMemory.
    """
    if config.warm_ups:
        return
    lead = (1,) if config.max_batch_size else ()
    arrays = {}
    for spec in config.inputs:
        shape = config.input_reshapes.get(spec.name, spec.shape)
        arrays[spec.name] = _zeros(spec.datatype, (*lead, *(max(1, dim) for dim in shape)))
    try:
        backend.infer(arrays, ())
    except OutOfMemory:
        raise
    except InferenceError as error:
        _LOG.info("warm_up_refused", model=config.name, error=str(error), remedy="configure model_warmup")


def model_shape(config: ModelConfig, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which the model takes an input that a caller gives in `shape`, both without batch dimension.

    Free dimensions of a reshape are the caller's free dimensions, in their order.
    """
    reshape = config.input_reshapes.get(name)
    if reshape is None:
        return shape
    return reshaped(shape, next(spec.shape for spec in config.inputs if spec.name == name), reshape)


def _array(config: ModelConfig, sample: WarmUp, field: WarmUpInput, directory: Path) -> Array:
    """One input of a sample as the backend takes it: in the model's shape, with the batch dimension if it has one."""
    _check(config, sample, field)
    count = math.prod(field.shape)
    if field.source == "file":
        row = _read(config, sample, field, directory, count)
    elif field.source == "random" and field.datatype != "BYTES":  # random text means nothing to any model
        row = _random(field.datatype, count)
    else:
        row = _zeros(field.datatype, (count,))
    shape = model_shape(config, field.name, field.shape)
    if not config.max_batch_size:
        return row.reshape(shape)
    rows = max(1, sample.rows)
    return np.tile(row, rows).reshape((rows, *shape))


def _check(config: ModelConfig, sample: WarmUp, field: WarmUpInput) -> None:
    spec = next((spec for spec in config.inputs if spec.name == field.name), None)
    if spec is None:
        known = ", ".join(spec.name for spec in config.inputs)
        raise _error(config, sample, field.name, field.name, "is no input of the model", f"its inputs are {known}")
    if field.datatype != spec.datatype:
        raise _error(
            config, sample, f"{field.name}.data_type", field.datatype, "is another", f"give TYPE_{spec.datatype}"
        )
    if len(field.shape) != len(spec.shape) or any(
        size < 0 or dim not in (-1, size) for size, dim in zip(field.shape, spec.shape, strict=True)
    ):
        raise _error(
            config,
            sample,
            f"{field.name}.dims",
            list(field.shape),
            f"do not fit the model's {list(spec.shape)}",
            "give every dimension a size, and leave the batch dimension out",
        )
    if sample.rows > config.max_batch_size:
        raise _error(config, sample, "batch_size", sample.rows, "is too large", f"give at most {config.max_batch_size}")


def _read(config: ModelConfig, sample: WarmUp, field: WarmUpInput, directory: Path, count: int) -> Array:
    at = f"{field.name}.input_data_file"
    file = directory / field.filename
    if Path(field.filename).is_absolute() or ".." in Path(field.filename).parts or not file.is_file():
        raise _error(config, sample, at, field.filename, "is no file", "put the file into the model's folder warmup")
    data = file.read_bytes()
    if field.datatype == "BYTES":
        return _elements(config, sample, field, data, count)
    dtype = NUMPY_TYPE[field.datatype]
    if len(data) != count * dtype.itemsize:
        raise _error(
            config,
            sample,
            at,
            field.filename,
            f"has {len(data)} bytes",
            f"give {count} elements of {field.datatype}, {count * dtype.itemsize} bytes",
        )
    return np.frombuffer(data, dtype)


def _elements(config: ModelConfig, sample: WarmUp, field: WarmUpInput, data: bytes, count: int) -> Array:
    try:
        elements = [bytes(element) for element in iter_bytes_elements(field.name, data)]
    except InferenceError as cause:
        raise _error(
            config,
            sample,
            f"{field.name}.input_data_file",
            field.filename,
            f"cannot be read: {cause}",
            "give each element behind its length, 4 bytes little-endian",
        ) from cause
    if len(elements) != count:
        raise _error(
            config,
            sample,
            f"{field.name}.input_data_file",
            field.filename,
            f"has {len(elements)} elements",
            f"give {count} elements",
        )
    array = np.empty(count, dtype=object)
    array[:] = elements
    return array


def _random(datatype: str, count: int) -> Array:
    generator = np.random.default_rng(_SEED)
    dtype = NUMPY_TYPE[datatype]
    if datatype == "BF16":  # the upper half of an FP32 is a BF16
        return (generator.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if dtype.kind == "f":
        return generator.random(count).astype(dtype)
    return generator.integers(0, 2 if datatype == "BOOL" else _RANDOM_BELOW, count).astype(dtype)


def _zeros(datatype: str, shape: tuple[int, ...]) -> Array:
    return np.full(shape, b"", dtype=object) if datatype == "BYTES" else np.zeros(shape, NUMPY_TYPE[datatype])


def _error(config: ModelConfig, sample: WarmUp, field: str, value: object, what: str, remedy: str) -> ModelConfigError:
    return ModelConfigError(
        f"warm-up sample {sample.name!r} of model {config.name!r}: {field} {value!r} {what}",
        field=f"model_warmup.{field}",
        value=value,
        remedy=remedy,
    )
