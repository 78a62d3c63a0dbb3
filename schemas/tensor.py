"""Tensor: a name, a datatype, a shape and little-endian row-major bytes that may be a view of a record.

Knows no numpy: workers make arrays of the bytes, the gateway makes JSON of them, neither copies.
Datatypes and the BYTES layout follow the Open Inference Protocol v2 and its binary tensor data extension.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from schemas.errors import InferenceError, invalid

if sys.byteorder != "little":  # the wire is little-endian and memory is never swapped
    raise ImportError("tidegate runs on little-endian machines only")

Buffer = bytes | bytearray | memoryview

ITEM_BYTES: dict[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
    "BYTES": 0,  # variable: each element is a uint32 length and that many bytes
}
# Type codes that array() and memoryview.cast() share with the wire; FP16, BF16, BOOL and BYTES have paths of their own.
_ARRAY_CODE: dict[str, Any] = {  # Any: typeshed wants literals where the code is data
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}
_LENGTH = struct.Struct("<I")
_MAX_ELEMENTS = 1 << 40  # beyond any memory: keeps products of hostile shapes small


# gc=False, here and in the other messages: they are trees, so the cycle collector need not walk them per request.
class Tensor(msgspec.Struct, frozen=True, gc=False):
    """One named tensor.

    `shape` includes the batch dimension where the model has one. `data` is little-endian and row-major, exactly
    `element_count * item size` long (BYTES: the sum of its length-prefixed elements).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer

    @property
    def element_count(self) -> int:
        """Number of elements that the shape promises."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Length of the data in bytes."""
        return len(self.data)

    def check(self) -> None:
        """Raise InferenceError if datatype, shape and data do not agree."""
        check_layout(self.name, self.datatype, self.shape)
        item_bytes = ITEM_BYTES[self.datatype]
        if item_bytes:
            expected_bytes = self.element_count * item_bytes
            if len(self.data) != expected_bytes:
                raise invalid(
                    f"tensor {self.name!r} holds {len(self.data)} bytes, its shape {list(self.shape)} "
                    f"of {self.datatype} needs {expected_bytes}",
                    field=f"{self.name}.data",
                    value=len(self.data),
                    remedy="send exactly element count x item size bytes, little-endian, row-major",
                )
        else:
            count = sum(1 for _ in iter_bytes_elements(self.name, self.data))
            _check_count(self.name, count, self.element_count)

    def to_list(self) -> list[Any]:
        """The elements in row-major order, as JSON values (BYTES as UTF-8 text).

        Raises InferenceError for BYTES that are not UTF-8; such data needs the binary form.
        """
        if (code := _ARRAY_CODE.get(self.datatype)) is not None:
            items: list[Any] = memoryview(self.data).cast("B").cast(code).tolist()
            return items
        if self.datatype == "BOOL":
            return [item != 0 for item in bytes(self.data)]
        if self.datatype == "FP16":
            return list(struct.unpack(f"<{len(self.data) // 2}e", self.data))
        if self.datatype == "BF16":
            halves = memoryview(self.data).cast("B").cast("H")
            return memoryview(array("I", [half << 16 for half in halves])).cast("B").cast("f").tolist()
        return [self._text(item) for item in iter_bytes_elements(self.name, self.data)]

    def _text(self, item: Buffer) -> str:
        try:
            return str(item, "utf-8")
        except UnicodeDecodeError as cause:
            raise invalid(
                f"tensor {self.name!r} holds bytes that are not UTF-8 and cannot be JSON",
                field=f"{self.name}.data",
                value=bytes(item[:16]),
                remedy="ask for the binary form: parameters.binary_data = true on this output",
            ) from cause


def tensor_from_list(name: str, datatype: str, shape: Sequence[int], values: list[Any]) -> Tensor:
    """Pack JSON values, flat or nested as `shape` says, into a Tensor.

    Raises InferenceError naming the tensor, the value and the remedy when values, datatype and shape do not agree.
    """
    dims = tuple(shape)
    check_layout(name, datatype, dims)
    if len(dims) > 1 and values and isinstance(values[0], list):
        values = _flatten(name, dims, values)
    try:
        data = _pack(datatype, values)
    except InferenceError:
        raise
    except (TypeError, ValueError, OverflowError, struct.error, AttributeError) as cause:
        raise invalid(
            f"tensor {name!r} has a value that is no {datatype}: {cause}",
            field=f"{name}.data",
            value=_first_misfit(datatype, values),
            remedy=f"send numbers in the range of {datatype} (BYTES: strings; BOOL: true or false)",
        ) from cause
    _check_count(name, len(values), math.prod(dims))
    return Tensor(name, datatype, dims, data)


def check_layout(name: str, datatype: str, shape: tuple[int, ...]) -> None:
    """Raise InferenceError for an unknown datatype, a negative dimension or an absurd size."""
    if datatype not in ITEM_BYTES:
        raise invalid(
            f"tensor {name!r} has unknown datatype {datatype!r}",
            field=f"{name}.datatype",
            value=datatype,
            remedy=f"use one of {', '.join(ITEM_BYTES)}",
        )
    count = 1
    for dim in shape:
        count *= max(dim, 1)  # beside a dimension of 0, too, none may be absurd
        if dim < 0 or count > _MAX_ELEMENTS:
            raise invalid(
                f"tensor {name!r} has shape {list(shape)}, which no tensor can have",
                field=f"{name}.shape",
                value=list(shape),
                remedy="give every dimension as a number >= 0; -1 is for model configurations only",
            )


def iter_bytes_elements(name: str, data: Buffer) -> Iterator[memoryview]:
    """Yield the elements of a BYTES tensor as views of `data`. Raises InferenceError if a length runs over the end."""
    view = memoryview(data)
    at_bytes, end_bytes = 0, len(view)
    while at_bytes < end_bytes:
        stop_bytes = at_bytes + 4
        if stop_bytes <= end_bytes:
            stop_bytes += _LENGTH.unpack_from(view, at_bytes)[0]
        if stop_bytes > end_bytes:
            raise invalid(
                f"tensor {name!r} ends inside an element at byte {at_bytes}",
                field=f"{name}.data",
                value=end_bytes,
                remedy="precede each BYTES element by its length as little-endian uint32",
            )
        yield view[at_bytes + 4 : stop_bytes]
        at_bytes = stop_bytes


def pack_bytes_elements(items: Iterable[Buffer]) -> bytes:
    """Lay out the elements of a BYTES tensor: each its uint32 length, then its bytes."""
    parts: list[Buffer] = []
    for item in items:
        parts.append(_LENGTH.pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def _pack(datatype: str, values: list[Any]) -> bytes:
    if (code := _ARRAY_CODE.get(datatype)) is not None:
        return array(code, values).tobytes()
    if datatype == "BOOL":
        if any(value not in (0, 1) for value in values):
            raise ValueError("not true or false")
        return bytes(map(int, values))
    if datatype == "FP16":
        return struct.pack(f"<{len(values)}e", *values)
    if datatype == "BF16":
        return array("H", map(_bfloat16, memoryview(array("f", values)).cast("B").cast("I"))).tobytes()
    return pack_bytes_elements([value.encode() for value in values])


def _bfloat16(bits: int) -> int:
    """Round an FP32 bit pattern to BF16: to nearest, ties to even; NaN stays NaN."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return (bits >> 16) | 0x0040
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _flatten(name: str, dims: tuple[int, ...], values: list[Any]) -> list[Any]:
    level = values
    for depth, dim in enumerate(dims[:-1]):
        if depth == 0:
            _check_rows(name, dims, [level], dim)
        _check_rows(name, dims, level, dims[depth + 1])
        level = [item for row in level for item in row]
    return level


def _check_rows(name: str, dims: tuple[int, ...], rows: list[Any], length: int) -> None:
    for row in rows:
        if not isinstance(row, list) or len(row) != length:
            raise invalid(
                f"tensor {name!r} has nested data that does not follow its shape {list(dims)}",
                field=f"{name}.data",
                value=row,
                remedy="nest the lists exactly as the shape says, or send one flat list in row-major order",
            )


def _check_count(name: str, count: int, expected: int) -> None:
    if count != expected:
        raise invalid(
            f"tensor {name!r} has {count} elements, its shape needs {expected}",
            field=f"{name}.data",
            value=count,
            remedy="send as many elements as the product of the shape's dimensions",
        )


def _first_misfit(datatype: str, values: list[Any]) -> Any:
    for value in values:
        try:
            _pack(datatype, [value])
        except Exception:  # whatever it is, this is the value to name
            return value
    return ""
