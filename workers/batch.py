"""Batch: requests that run together, as arrays, and the way back from arrays to each request's rows.

Assembling copies each tensor once (a batch of one request copies nothing); splitting copies nothing. Knows numpy, no
Kafka and no backend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from schemas.request import InferenceRequest
from schemas.tensor import Buffer, Tensor, iter_bytes_elements, pack_bytes_elements

Array = npt.NDArray[Any]  # of any datatype: which one is said by the model's configuration
Arrays = dict[str, Array]

# BF16 has no numpy type: its bits travel as uint16, and the model's configuration says what they are.
NUMPY_TYPE: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),
    "BYTES": np.dtype(np.object_),
}

Signature = tuple[tuple[str, str, tuple[int, ...]], ...]


def signature_of(request: InferenceRequest, *, batched: bool) -> Signature:
    """What two requests must share to ride in one batch: the same inputs with the same datatypes and row shapes."""
    tensors = request.inputs
    if len(tensors) == 1:
        tensor = tensors[0]
        return ((tensor.name, tensor.datatype, tensor.shape[1:] if batched else tensor.shape),)
    return tuple(
        sorted((tensor.name, tensor.datatype, tensor.shape[1:] if batched else tensor.shape) for tensor in tensors)
    )


def assemble(requests: Sequence[InferenceRequest], rows: int) -> Arrays:
    """Stack the requests' tensors along the batch dimension, in order. All must share a signature.

    A single request is passed through with its own shapes, whether the model has a batch dimension or not.
    """
    first = requests[0]
    if len(requests) == 1:
        return {tensor.name: _array(tensor.datatype, tensor.shape, tensor.data) for tensor in first.inputs}
    arrays: Arrays = {}
    if len(first.inputs) == 1:  # the common case, without the look-ups by name
        tensor = first.inputs[0]
        data = b"".join([request.inputs[0].data for request in requests])
        return {tensor.name: _array(tensor.datatype, (rows, *tensor.shape[1:]), data)}
    by_name = [{tensor.name: tensor.data for tensor in request.inputs} for request in requests]
    for tensor in first.inputs:
        data = b"".join([data[tensor.name] for data in by_name])
        arrays[tensor.name] = _array(tensor.datatype, (rows, *tensor.shape[1:]), data)
    return arrays


def rows_of(arrays: Arrays, first_row: int, end_row: int) -> Arrays:
    """The rows [first_row, end_row) of every array, as views."""
    return {name: array[first_row:end_row] for name, array in arrays.items()}


class Outputs:
    """The outputs of a batch, ready to be cut into each request's rows."""

    def __init__(self, arrays: Mapping[str, Array], specs: Sequence[TensorSpec], rows: int, *, batched: bool) -> None:
        """Raises InferenceError(MODEL_FAILED) if an output is missing or has another number of rows than went in."""
        self._columns: list[tuple[str, str, tuple[int, ...], Buffer | Array, int]] = []
        self._batched = batched
        for spec in specs:
            array = arrays.get(spec.name)
            if array is None:
                continue
            if batched and (array.ndim == 0 or array.shape[0] != rows):
                raise InferenceError(
                    ErrorCode.MODEL_FAILED,
                    f"output {spec.name!r} has shape {list(array.shape)} for a batch of {rows} rows",
                    field=f"outputs.{spec.name}",
                    value=list(array.shape),
                    remedy="the first dimension of every output must be the batch dimension",
                )
            row_shape = array.shape[1:] if batched else array.shape
            if spec.datatype == "BYTES":
                self._columns.append((spec.name, spec.datatype, row_shape, array, 0))
                continue
            expected = NUMPY_TYPE[spec.datatype]
            if array.dtype != expected:
                raise InferenceError(
                    ErrorCode.MODEL_FAILED,
                    f"output {spec.name!r} came as {array.dtype}, the model is configured for {spec.datatype}",
                    field=f"outputs.{spec.name}",
                    remedy="correct data_type in the model's config.pbtxt, or the model",
                )
            row_bytes = math.prod(row_shape) * array.itemsize
            self._columns.append((spec.name, spec.datatype, row_shape, _bytes_of(array), row_bytes))

    def rows(self, first_row: int, count: int, wanted: frozenset[str] | None) -> tuple[Tensor, ...]:
        """One request's outputs as views; `wanted` None means all. Without a batch dimension: everything."""
        tensors: list[Tensor] = []
        for name, datatype, row_shape, data, row_bytes in self._columns:
            if wanted is not None and name not in wanted:
                continue
            shape = (count, *row_shape) if self._batched else row_shape
            if isinstance(data, np.ndarray):
                items = data[first_row : first_row + count] if self._batched else data
                raw: Buffer = pack_bytes_elements(_as_bytes(item) for item in items.reshape(-1))
            elif self._batched:
                raw = data[first_row * row_bytes : (first_row + count) * row_bytes]
            else:
                raw = data
            tensors.append(Tensor(name, datatype, shape, raw))
        return tuple(tensors)


def array_of(tensor: Tensor) -> Array:
    """A tensor as an array of its shape; copies nothing but BYTES."""
    return _array(tensor.datatype, tensor.shape, tensor.data)


def tensor_of(spec: TensorSpec, array: Array) -> Tensor:
    """An array as a tensor of the spec's name and datatype; copied where it is not contiguous."""
    if spec.datatype == "BYTES":
        raw: Buffer = pack_bytes_elements(_as_bytes(item) for item in array.reshape(-1))
    else:
        raw = _bytes_of(array)
    return Tensor(spec.name, spec.datatype, array.shape, raw)


def _array(datatype: str, shape: tuple[int, ...], data: Buffer) -> Array:
    if datatype == "BYTES":
        items = np.empty(math.prod(shape), dtype=np.object_)
        items[:] = [bytes(item) for item in iter_bytes_elements("", data)]
        return items.reshape(shape)
    return np.frombuffer(data, dtype=NUMPY_TYPE[datatype]).reshape(shape)


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _as_bytes(item: object) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode()
