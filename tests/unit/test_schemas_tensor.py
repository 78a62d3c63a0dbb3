"""Tensors: all 14 datatypes in JSON and raw form, and every misfit named."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, InferenceError
from schemas.tensor import ITEM_BYTES, Tensor, iter_bytes_elements, pack_bytes_elements, tensor_from_list

DATATYPES = sorted(ITEM_BYTES)
_BITS = {"UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64, "INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64}
_NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


def elements(datatype: str) -> st.SearchStrategy[Any]:
    """JSON values that the datatype holds exactly."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text(max_size=20)
    if datatype in _BITS:
        bits = _BITS[datatype]
        signed = datatype.startswith("INT")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return st.integers(low, high)
    if datatype == "BF16":
        return st.floats(width=16, allow_nan=False, allow_infinity=False).map(_as_bfloat16)
    width = {"FP16": 16, "FP32": 32, "FP64": 64}[datatype]
    return st.floats(width=width, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]  # a literal in stubs


def _as_bfloat16(value: float) -> float:
    bits = struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def tensors(datatypes: list[str] = DATATYPES) -> st.SearchStrategy[Tensor]:
    """Tensors of any of these datatypes, of up to 3 dimensions, empty ones too."""

    @st.composite
    def draw_tensor(draw: st.DrawFn) -> Tensor:
        datatype = draw(st.sampled_from(datatypes))
        shape = draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
        count = math.prod(shape)
        values = draw(st.lists(elements(datatype), min_size=count, max_size=count))
        return tensor_from_list(draw(st.text(min_size=1, max_size=8)), datatype, shape, values)

    return draw_tensor()


def nest(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """The flat values as lists of lists."""
    if len(shape) <= 1:
        return values
    step = math.prod(shape[1:])
    return [nest(values[index * step : (index + 1) * step], shape[1:]) for index in range(shape[0])]


@given(tensors())
def test_json_values_round_trip_flat_and_nested(tensor: Tensor) -> None:
    tensor.check()
    values = tensor.to_list()
    assert tensor_from_list(tensor.name, tensor.datatype, tensor.shape, values) == tensor
    assert tensor_from_list(tensor.name, tensor.datatype, tensor.shape, nest(values, tensor.shape)) == tensor


@given(tensors(sorted(_NUMPY)))
def test_the_bytes_are_those_that_numpy_has(tensor: Tensor) -> None:
    array = np.frombuffer(tensor.data, dtype=_NUMPY[tensor.datatype])
    assert array.tolist() == tensor.to_list()
    assert tensor.size_bytes == array.nbytes


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bf16_rounds_to_the_nearest_and_ties_to_even(value: float) -> None:
    got = tensor_from_list("x", "BF16", [1], [value]).to_list()[0]
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    below, above = (
        struct.unpack("<f", struct.pack("<I", part))[0]
        for part in (bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000 & 0xFFFFFFFF)
    )
    if math.isinf(above):  # the next one is beyond the largest: whichever is chosen, it is one of the two
        assert got in (below, above)
        return
    gaps = abs(value - below), abs(above - value)
    if gaps[0] == gaps[1]:
        assert struct.unpack("<I", struct.pack("<f", got))[0] & 0x10000 == 0
    assert abs(value - got) == min(gaps)


def test_bf16_keeps_nan_and_infinity() -> None:
    values = tensor_from_list("x", "BF16", [3], [math.nan, math.inf, -math.inf]).to_list()
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


@given(st.lists(st.binary(max_size=20)))
def test_bytes_elements_round_trip_as_views(items: list[bytes]) -> None:
    data = pack_bytes_elements(items)
    views = list(iter_bytes_elements("x", data))
    assert [bytes(view) for view in views] == items
    assert all(view.obj is data for view in views)


@given(st.binary(max_size=64))
def test_random_bytes_are_elements_or_an_error_that_names_the_tensor(data: bytes) -> None:
    try:
        assert pack_bytes_elements(iter_bytes_elements("x", data)) == data
    except InferenceError as error:
        assert error.field == "x.data"  # noqa: PT017 - both ends are right


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=10,
)


@given(st.sampled_from(DATATYPES), st.lists(st.integers(-1, 3), max_size=3), st.lists(_JSON, max_size=6))
def test_whatever_the_values_are_the_only_error_is_ours(datatype: str, shape: list[int], values: list[Any]) -> None:
    try:
        tensor_from_list("x", datatype, shape, values).check()
    except InferenceError as error:
        assert error.code is ErrorCode.INVALID_REQUEST  # noqa: PT017 - both ends are right
        assert error.field.startswith("x.")  # noqa: PT017
        assert error.remedy  # noqa: PT017


@pytest.mark.parametrize(
    ("datatype", "values", "shown"),
    [
        ("UINT8", [1, 256], "256"),
        ("INT8", [-129], "-129"),
        ("INT64", [1 << 63], str(1 << 63)),
        ("UINT32", [1.5], "1.5"),
        ("BOOL", [True, 2], "2"),
        ("BYTES", ["a", 1], "1"),
        ("FP32", ["1"], "1"),
        ("FP16", [70000.0], "70000.0"),
        ("FP32", [None], "None"),
        ("BF16", [10**400], str(10**400)[:119] + "…"),
    ],
)
def test_a_value_that_does_not_fit_is_named(datatype: str, values: list[Any], shown: str) -> None:
    with pytest.raises(InferenceError) as caught:
        tensor_from_list("x", datatype, [len(values)], values)
    assert (caught.value.field, caught.value.value) == ("x.data", shown)
    assert datatype in caught.value.remedy


@pytest.mark.parametrize("shape", [[-1], [1 << 41], [1 << 21, 1 << 21], [1, 0, 1 << 70], [0, -1]])
def test_absurd_shapes_are_refused(shape: list[int]) -> None:
    with pytest.raises(InferenceError) as caught:
        tensor_from_list("x", "FP32", shape, [])
    assert caught.value.field == "x.shape"


@pytest.mark.parametrize(
    "values", [[[1, 2], [3]], [[1, 2], 3], [1, [2, 3]], [[[1], [2]], [[3], [4]]], [[1, 2, 3], [4]], [1, 2, 3]]
)
def test_nesting_that_does_not_follow_the_shape_is_refused(values: list[Any]) -> None:
    with pytest.raises(InferenceError) as caught:
        tensor_from_list("x", "FP32", [2, 2], values)
    assert caught.value.field == "x.data"


@pytest.mark.parametrize(
    ("datatype", "size_bytes"), [("FP32", 7), ("FP32", 12), ("BOOL", 1), ("BYTES", 9), ("BYTES", 4), ("BF16", 2)]
)
def test_raw_data_of_another_length_than_the_shape_needs_is_refused(datatype: str, size_bytes: int) -> None:
    with pytest.raises(InferenceError) as caught:
        Tensor("x", datatype, (2,), bytes(size_bytes)).check()
    assert caught.value.field == "x.data"


def test_an_unknown_datatype_is_refused_with_those_there_are() -> None:
    with pytest.raises(InferenceError, match="FLOAT") as caught:
        tensor_from_list("x", "FLOAT", [1], [1])
    assert caught.value.field == "x.datatype"
    assert all(datatype in caught.value.remedy for datatype in DATATYPES)


def test_bytes_that_are_no_text_need_the_binary_form() -> None:
    with pytest.raises(InferenceError) as caught:
        Tensor("x", "BYTES", (1,), pack_bytes_elements([b"\xff"])).to_list()
    assert "binary_data" in caught.value.remedy
