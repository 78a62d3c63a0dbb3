"""Padder: inputs of different lengths brought to the same one, and outputs cut back. Knows numpy, no batching rule.

The length of a request is the size of its padded inputs along their first free dimension; where those differ, it has
none, and rides as it is. A bucket is the length that it is padded to: the smallest that holds it, or its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from schemas.model import TensorSpec
from schemas.request import InferenceRequest
from workers.batch import NUMPY_TYPE, Array, Arrays, array_of
from workers.model_config import ModelConfig, Padding


class Padder:
    """A model's padding. `batched`: the tensors have a leading batch dimension, which the configuration leaves out."""

    def __init__(self, padding: Padding, config: ModelConfig) -> None:
        self._padding = padding
        self._batched = config.max_batch_size > 0
        inputs = {spec.name: spec for spec in config.inputs}
        self._axes = {name: self._axis(inputs[name]) for name in padding.inputs}
        self._values = {name: _value(inputs[name].datatype, padding.value) for name in padding.inputs}
        self._mask = inputs.get(padding.mask_input)
        self._length = inputs.get(padding.length_input)
        if self._mask is not None:  # one that a request brings is padded with "no data"
            self._axes[self._mask.name] = self._axis(self._mask)
            self._values[self._mask.name] = _value(self._mask.datatype, 0)
        self._output_axes = {spec.name: self._axis(spec) for spec in config.outputs if spec.name in padding.outputs}

    @property
    def cuts_outputs(self) -> bool:
        """Whether any output is to be cut back."""
        return bool(self._output_axes)

    def length(self, request: InferenceRequest) -> int | None:
        """The length of a request's padded inputs; None where it has none of them, or they differ."""
        lengths = {tensor.shape[self._axes[tensor.name]] for tensor in request.inputs if tensor.name in self._axes}
        return lengths.pop() if len(lengths) == 1 else None

    def bucket(self, length: int) -> int:
        """The length that one of `length` is padded to."""
        buckets = self._padding.buckets
        place = bisect_left(buckets, length)
        return buckets[place] if place < len(buckets) else length

    def shapes(self, request: InferenceRequest) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Datatype and shape of each input as the model sees it, those that are filled in included."""
        shapes = {tensor.name: (tensor.datatype, tensor.shape) for tensor in request.inputs}
        length = self.length(request)
        if length is None:
            return shapes
        bucket = self.bucket(length)
        for name, (datatype, shape) in shapes.items():
            axis = self._axes.get(name)
            if axis is not None:
                shapes[name] = (datatype, (*shape[:axis], bucket, *shape[axis + 1 :]))
        first = request.inputs[0].shape
        for spec in (self._mask, self._length):
            if spec is not None and spec.name not in shapes:
                shapes[spec.name] = (spec.datatype, self._filled_shape(spec, first[0] if self._batched else 0, bucket))
        return shapes

    def assemble(self, requests: Sequence[InferenceRequest], rows: int) -> Arrays:
        """The inputs of requests that share a signature, padded, stacked, and with mask and length filled in."""
        lengths = [self.length(request) for request in requests]
        arrays: Arrays = {}
        for name, (datatype, shape) in self.shapes(requests[0]).items():
            fill = self._values.get(name, 0)
            whole = (rows, *shape[1:]) if self._batched else shape
            array: Array = np.full(whole, fill, dtype=NUMPY_TYPE[datatype])
            first = 0
            for request, length in zip(requests, lengths, strict=True):
                tensor = next((tensor for tensor in request.inputs if tensor.name == name), None)
                count = _rows(request) if self._batched else 1
                part = array[first : first + count] if self._batched else array
                first += count
                if tensor is not None:
                    part[tuple(slice(size) for size in tensor.shape)] = array_of(tensor)
                elif length is not None:
                    self._fill(part, name, length)
            arrays[name] = array
        return arrays

    def cut(self, name: str, array: Array, length: int, bucket: int) -> Array:
        """An output's rows of one request, cut back to its length where the model gave the bucket's."""
        axis = self._output_axes.get(name)
        if axis is None or axis >= array.ndim or array.shape[axis] != bucket:
            return array
        return array[(*(slice(None),) * axis, slice(length))]

    def _fill(self, part: Array, name: str, length: int) -> None:
        if self._mask is not None and name == self._mask.name:
            part[(*(slice(None),) * self._axes[name], slice(length))] = _value(self._mask.datatype, 1)
        elif self._length is not None and name == self._length.name:
            part[...] = _value(self._length.datatype, length)

    def _filled_shape(self, spec: TensorSpec, rows: int, bucket: int) -> tuple[int, ...]:
        dims = tuple(bucket if dim == -1 else dim for dim in spec.shape)
        return (rows, *dims) if self._batched else dims

    def _axis(self, spec: TensorSpec) -> int:
        return spec.shape.index(-1) + self._batched


def _rows(request: InferenceRequest) -> int:
    return request.inputs[0].shape[0]


def _value(datatype: str, value: float) -> float | int:
    """A number as an element of a datatype; BF16 travels as the upper half of an FP32's bits."""
    if datatype == "BF16":
        return int(np.float32(value).view(np.uint32)) >> 16
    return value if datatype.startswith("FP") else int(value)
