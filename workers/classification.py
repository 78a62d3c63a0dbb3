"""Classification: an output as its highest values with their classes, for callers who ask for that.

Follows the classification extension of the Open Inference Protocol v2: each entry is BYTES, `value:index[:label]`, the
highest first. Knows numpy and no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from schemas.request import InferenceRequest
from schemas.tensor import Tensor, pack_bytes_elements
from workers.batch import Array, array_of

Labels = Mapping[str, Sequence[str]]  # by output: the names of its classes, in their order


def classified(
    outputs: tuple[Tensor, ...], request: InferenceRequest, labels: Labels, *, batched: bool
) -> tuple[Tensor, ...]:
    """The outputs of one request, those that it wants classified as BYTES of shape [rows, k], [k] without a batch.

    k is what was asked for, or the number of classes where that is less. A class without a label has none.
    """
    counts = {output.name: output.parameters.get("classification", 0) for output in request.outputs}
    if not any(counts.values()):
        return outputs
    return tuple(
        _classify(tensor, count, labels.get(tensor.name, ()), batched=batched)
        if (count := counts.get(tensor.name, 0))
        else tensor
        for tensor in outputs
    )


def _classify(tensor: Tensor, count: int, labels: Sequence[str], *, batched: bool) -> Tensor:
    shape = tensor.shape
    rows = shape[0] if batched else 1
    columns = math.prod(shape[1:] if batched else shape)
    values = _numbers(tensor).reshape(rows, columns)
    entries = [_entry(row, index, labels) for row in values for index in _highest(row, count)]
    found = min(count, columns)
    return Tensor(tensor.name, "BYTES", (rows, found) if batched else (found,), pack_bytes_elements(entries))


def _highest(row: Array, count: int) -> list[int]:
    # Backwards there and back: the sort is stable, so of equal values the lower index comes first.
    ascending = np.argsort(row[::-1], kind="stable")
    last = len(row) - 1
    return [last - int(index) for index in ascending[::-1][:count]]


def _entry(row: Array, index: int, labels: Sequence[str]) -> bytes:
    value = row[index].item()
    text = f"{value:f}:{index}" if isinstance(value, float) else f"{value}:{index}"
    return (f"{text}:{labels[index]}" if index < len(labels) else text).encode()


def _numbers(tensor: Tensor) -> Array:
    array = array_of(tensor)
    if tensor.datatype == "BF16":  # its bits are the upper half of an FP32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.uint8) if tensor.datatype == "BOOL" else array
