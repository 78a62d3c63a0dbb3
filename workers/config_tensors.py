"""The inputs and outputs of a configuration message: their specs, reshapes, label files, and what is wrong with them.

Must not know the rest of the configuration, nor the model file. Messages are Any: protobuf publishes no types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from schemas.model import TensorSpec
from workers.config_error import ConfigFault

_IMAGE_DIMS = 3


def spec_of(tensor: Any) -> TensorSpec:
    """The spec of a ModelInput or ModelOutput."""
    is_optional = tensor.DESCRIPTOR.name == "ModelInput" and tensor.optional
    return TensorSpec(tensor.name, datatype_of(tensor), tuple(tensor.dims), is_optional)


def reshapes_of(tensors: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """The shape that the model file has, by tensor, where that is another one than dims."""
    return {tensor.name: tuple(tensor.reshape.shape) for tensor in tensors if tensor.HasField("reshape")}


def datatype_of(message: Any) -> str:
    """The wire's name of a TYPE_... value; '' when it is not given, or a number that is no type."""
    known = message.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    name: str = known[message.data_type].name if message.data_type in known else "TYPE_INVALID"
    return {"TYPE_STRING": "BYTES", "TYPE_INVALID": ""}.get(name, name.removeprefix("TYPE_"))


def tensor_faults(tensors: Sequence[Any], kind: str) -> Iterator[ConfigFault]:
    """Everything that is wrong with the inputs, or with the outputs."""
    names = [tensor.name for tensor in tensors]
    for index, tensor in enumerate(tensors):
        path = f"{kind}.{tensor.name or index}"
        if not tensor.name:
            yield ConfigFault(f"{path}.name", "", "is missing", "name every tensor as the model file does")
        elif names.index(tensor.name) != index:
            yield ConfigFault(f"{path}.name", tensor.name, "is given twice", "name each tensor once")
        yield from datatype_faults(tensor, path)
        if not tensor.dims:
            remedy = f"give dims, or leave all {kind}s to the model file; a scalar has dims [ 1 ] and an empty reshape"
            yield ConfigFault(f"{path}.dims", "", "is missing", remedy)
        yield from size_faults(f"{path}.dims", tensor.dims)
        yield from _reshape_faults(path, tensor)
        if kind == "input":
            yield from _format_faults(path, tensor)
        else:
            yield from path_faults(f"{path}.label_filename", tensor.label_filename)


def datatype_faults(message: Any, path: str) -> Iterator[ConfigFault]:
    """A fault where there is no datatype."""
    if not datatype_of(message):
        remedy = "give one of TYPE_BOOL to TYPE_BF16"
        yield ConfigFault(f"{path}.data_type", message.data_type or "", "is missing or no type", remedy)


def size_faults(path: str, dims: Sequence[int], *, is_free_allowed: bool = True) -> Iterator[ConfigFault]:
    """A fault where a dimension can be no size."""
    if any(dim < 1 and not (is_free_allowed and dim == -1) for dim in dims):
        remedy = "use -1 for any size" if is_free_allowed else "give a size of 1 or more for each dimension"
        yield ConfigFault(path, list(dims), "has a size below 1", remedy)


def path_faults(field: str, name: str) -> Iterator[ConfigFault]:
    """A fault where a file name leads out of its directory."""
    parts = PurePosixPath(name).parts
    if name and (name.startswith("/") or ".." in parts or "\0" in name or not parts or name.endswith("/")):
        remedy = "give the name of a file inside the directory, without '..'"
        yield ConfigFault(field, name, "is no path inside the model's own directory", remedy)


def _reshape_faults(path: str, tensor: Any) -> Iterator[ConfigFault]:
    if not tensor.HasField("reshape"):
        return
    shape = list(tensor.reshape.shape)
    field = f"{path}.reshape"
    invalid_sizes = list(size_faults(field, shape))
    yield from invalid_sizes
    if invalid_sizes or any(dim < 1 and dim != -1 for dim in tensor.dims):
        return
    dims_counts, shape_counts = _counts(tensor.dims), _counts(shape)
    if len(dims_counts) != len(shape_counts):
        what = f"has another number of free dimensions than dims {list(tensor.dims)}"
        yield ConfigFault(field, shape, what, "give each -1 of dims its place in the reshape, in the same order")
    elif dims_counts != shape_counts:
        what = f"has not as many elements as dims {list(tensor.dims)}"
        remedy = "the sizes multiply to the same number, before, between and after the free dimensions"
        yield ConfigFault(field, shape, what, remedy)


def _counts(dims: Sequence[int]) -> list[int]:
    """The elements of each stretch of fixed dimensions: before the first free one, between them, after the last."""
    stretches: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            stretches.append([])
        else:
            stretches[-1].append(dim)
    return [math.prod(stretch) for stretch in stretches]


def _format_faults(path: str, tensor: Any) -> Iterator[ConfigFault]:
    known = tensor.DESCRIPTOR.fields_by_name["format"].enum_type.values_by_number
    if tensor.format not in known:
        yield ConfigFault(f"{path}.format", tensor.format, "is no format", f"give one of {_names(known)}")
    elif tensor.format and len(tensor.dims) != _IMAGE_DIMS:
        what = f"is that of an image, which has three dims, here {list(tensor.dims)}"
        yield ConfigFault(f"{path}.format", known[tensor.format].name, what, "give three dims, or no format")


def _names(values_by_number: Any) -> str:
    return ", ".join(value.name for value in values_by_number.values())
