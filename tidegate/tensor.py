"""Tensor: a datatype, a shape and little-endian row-major bytes, made of and into lists and numpy arrays.

Datatypes and the layout of BYTES follow the Open Inference Protocol v2. numpy is looked for only when an array is asked
for or given: this file works without it. Knows no HTTP.
"""

from __future__ import annotations

import importlib
import math
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

if sys.byteorder != "little":  # the wire is little-endian and memory is never swapped
    raise ImportError("the tidegate client runs on little-endian machines only")

_CODES: dict[str, Any] = {  # Any: typeshed wants literals where the code is data
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
_ITEM_BYTES = {**{name: array(code).itemsize for name, code in _CODES.items()}, "BOOL": 1, "FP16": 2, "BF16": 2}
_BY_DTYPE = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
}
_DTYPES = {datatype: dtype for dtype, datatype in _BY_DTYPE.items() if datatype != "BF16"}
DATATYPES = (*_ITEM_BYTES, "BYTES")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of a model's input or output.

    `data` is little-endian and row-major. BYTES: each element is its length as uint32, then its bytes.
    """

    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    def __post_init__(self) -> None:
        """Raise ValueError unless datatype, shape and data agree."""
        if self.datatype not in DATATYPES:
            raise ValueError(f"unknown datatype {self.datatype!r}: use one of {', '.join(DATATYPES)}")
        if any(dim < 0 for dim in self.shape):
            raise ValueError(f"shape {list(self.shape)} has a negative dimension")
        item_bytes = _ITEM_BYTES.get(self.datatype)
        if item_bytes is None:
            count, wanted = sum(1 for _ in _elements(self.data)), math.prod(self.shape)
        else:
            count, wanted = len(self.data), math.prod(self.shape) * item_bytes
        if count != wanted:
            unit = "elements" if item_bytes is None else "bytes"
            raise ValueError(f"{self.datatype} of shape {list(self.shape)} needs {wanted} {unit}, there are {count}")

    @classmethod
    def of(cls, datatype: str, values: Any, shape: Sequence[int] | None = None) -> Tensor:
        """Make one of a number, a text, or (nested) lists of them. Raises ValueError.

        `shape` is read off the nesting when it is left out; with it the values may be one flat list.
        """
        if datatype not in DATATYPES:
            raise ValueError(f"unknown datatype {datatype!r}: use one of {', '.join(DATATYPES)}")
        found, flat = _unnest(values)
        dims = found if shape is None else tuple(shape)
        if math.prod(dims) != len(flat):
            raise ValueError(f"shape {list(dims)} needs {math.prod(dims)} values, there are {len(flat)}")
        try:
            return cls(datatype, dims, _pack(datatype, flat))
        except (TypeError, OverflowError, struct.error, AttributeError) as cause:
            raise ValueError(f"a value is no {datatype}: {cause}") from cause

    @classmethod
    def of_array(cls, values: Any) -> Tensor:
        """Make one of a numpy array, or of what looks like one: `dtype`, `shape`, `tobytes()`. Raises ValueError."""
        kind: str = values.dtype.kind
        shape = tuple(int(dim) for dim in values.shape)
        if kind in "SUO":
            return cls("BYTES", shape, _pack("BYTES", values.ravel().tolist()))
        datatype = _BY_DTYPE.get(values.dtype.name)
        if datatype is None:
            raise ValueError(f"arrays of {values.dtype} have no datatype on the wire: convert them first")
        if getattr(values.dtype, "byteorder", "=") == ">":
            values = values.astype(values.dtype.newbyteorder("<"))
        return cls(datatype, shape, values.tobytes())

    def tolist(self) -> Any:
        """The values as nested lists; a number or bytes for shape []. BYTES elements are `bytes`."""
        return _nest(self._flat(), self.shape)

    def texts(self) -> list[str]:
        """The elements of BYTES, one after the other, as UTF-8 text. Raises ValueError for other datatypes."""
        if self.datatype != "BYTES":
            raise ValueError(f"{self.datatype} is no text: use tolist() or numpy()")
        return [item.decode() for item in _elements(self.data)]

    def numpy(self) -> Any:
        """The values as a numpy array: a read-only view of the data, without a copy.

        BYTES become an object array of `bytes`. BF16, which numpy lacks, becomes float32, exactly. Raises ImportError
        where there is no numpy.
        """
        np = importlib.import_module("numpy")
        if self.datatype == "BYTES":
            made = np.empty(math.prod(self.shape), dtype=object)
            made[:] = list(_elements(self.data))
            return made.reshape(self.shape)
        if self.datatype == "BF16":
            wide = np.frombuffer(self.data, dtype="<u2").astype("<u4") << 16
            return wide.view("<f4").reshape(self.shape)
        return np.frombuffer(self.data, dtype=_DTYPES[self.datatype]).reshape(self.shape)

    def json_values(self) -> list[Any]:
        """The flat values as JSON has them. Raises ValueError for what JSON has no form for: bytes that are no UTF-8,
        and numbers that are not finite.
        """
        if self.datatype == "BYTES":
            return self.texts()
        values = self._flat()
        if self.datatype in ("FP16", "BF16", "FP32", "FP64") and not all(map(math.isfinite, values)):
            raise ValueError("JSON has no NaN and no infinity: send them in the binary form")
        return values

    def _flat(self) -> list[Any]:
        if (code := _CODES.get(self.datatype)) is not None:
            found: list[Any] = memoryview(self.data).cast("B").cast(code).tolist()
            return found
        if self.datatype == "BOOL":
            return [item != 0 for item in bytes(self.data)]
        if self.datatype == "FP16":
            return list(struct.unpack(f"<{len(self.data) // 2}e", self.data))
        if self.datatype == "BF16":
            halves = memoryview(self.data).cast("B").cast("H")
            return memoryview(array("I", [half << 16 for half in halves])).cast("B").cast("f").tolist()
        return list(_elements(self.data))


def is_array(value: Any) -> bool:
    """Whether this is a numpy array or scalar, or looks like one."""
    return all(hasattr(value, name) for name in ("dtype", "shape", "tobytes"))


def is_text(values: Any) -> bool:
    """Whether these are texts or bytes, possibly in nested lists; False for no values at all."""
    while isinstance(values, (list, tuple)):
        if not values:
            return False
        values = values[0]
    return isinstance(values, (str, bytes))


def _elements(data: bytes | memoryview) -> Iterator[bytes]:
    view = memoryview(data)
    at_bytes, end_bytes = 0, len(view)
    while at_bytes < end_bytes:
        stop_bytes = at_bytes + 4
        if stop_bytes <= end_bytes:
            stop_bytes += int.from_bytes(view[at_bytes:stop_bytes], "little")
        if stop_bytes > end_bytes:
            raise ValueError(f"BYTES end inside an element, at byte {at_bytes}")
        yield bytes(view[at_bytes + 4 : stop_bytes])
        at_bytes = stop_bytes


def _unnest(values: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists and their flat values. Raises ValueError when they are ragged."""
    dims: list[int] = []
    level = [values]
    while level and isinstance(level[0], (list, tuple)):
        length = len(level[0])
        if any(not isinstance(row, (list, tuple)) or len(row) != length for row in level):
            raise ValueError("the lists are of different lengths; a tensor is rectangular")
        dims.append(length)
        level = [item for row in level for item in row]
    return tuple(dims), level


def _nest(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return flat
    step = math.prod(shape[1:])
    return [_nest(flat[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0])]


def _pack(datatype: str, values: list[Any]) -> bytes:
    if (code := _CODES.get(datatype)) is not None:
        return array(code, values).tobytes()
    if datatype == "BOOL":
        if any(value not in (0, 1) for value in values):
            raise ValueError("a value is no BOOL: send True or False")
        return bytes(map(int, values))
    if datatype == "FP16":
        return struct.pack(f"<{len(values)}e", *values)
    if datatype == "BF16":
        return array("H", map(_bfloat16, memoryview(array("f", values)).cast("B").cast("I"))).tobytes()
    return b"".join(_prefixed(values))


def _prefixed(values: Iterable[Any]) -> Iterator[bytes]:
    for value in values:
        item = value.encode() if isinstance(value, str) else memoryview(value).tobytes()
        yield struct.pack("<I", len(item))
        yield item


def _bfloat16(bits: int) -> int:
    """Round an FP32 bit pattern to BF16: to nearest, ties to even; NaN stays NaN."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return (bits >> 16) | 0x0040
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
