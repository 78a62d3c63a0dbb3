"""The client's tensors: lists, arrays and bytes of every datatype, held against the server's own code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.tensor import ITEM_BYTES, tensor_from_list
from tidegate import Tensor
from tidegate.tensor import DATATYPES

_INTS = {name: (8 * size, not name.startswith("U")) for name, size in ITEM_BYTES.items() if "INT" in name}


def elements(datatype: str) -> st.SearchStrategy[Any]:
    if datatype in _INTS:
        bits, signed = _INTS[datatype]
        low = -(1 << (bits - 1)) if signed else 0
        return st.integers(low, low + (1 << bits) - 1)
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.text()
    width = {"FP16": 16, "BF16": 32, "FP32": 32, "FP64": 64}[datatype]
    bound = 3.0e38 if datatype == "BF16" else None
    return st.floats(
        width=width,  # type: ignore[arg-type]  # it is one of the three
        allow_nan=False,
        allow_infinity=False,
        min_value=None if bound is None else -(2.0**120),
        max_value=None if bound is None else 2.0**120,
    )


def test_the_datatypes_are_the_server_s() -> None:
    assert set(DATATYPES) == set(ITEM_BYTES)


@given(st.data())
def test_values_are_packed_and_read_as_the_server_does(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(DATATYPES))
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    shape = (rows, columns)
    flat = data.draw(st.lists(elements(datatype), min_size=rows * columns, max_size=rows * columns))
    ours, theirs = Tensor.of(datatype, flat, shape), tensor_from_list("x", datatype, shape, flat)
    assert ours.data == theirs.data
    assert ours.json_values() == theirs.to_list()
    nested = [flat[row * columns : (row + 1) * columns] for row in range(rows)]
    if rows:  # else the nesting shows no columns
        assert Tensor.of(datatype, nested) == ours
    array = ours.numpy()
    assert array.shape == shape
    if datatype != "BF16":
        assert bytes(Tensor.of_array(array).data) == ours.data


def test_arrays_of_any_byte_order_and_layout_become_the_same_bytes() -> None:
    plain = np.arange(6, dtype=np.int32).reshape(2, 3)
    wanted = Tensor("INT32", (2, 3), plain.tobytes())
    assert Tensor.of_array(plain.astype(">i4")) == wanted
    assert Tensor.of_array(np.asfortranarray(plain)) == wanted
    assert Tensor.of_array(np.float32(1.5)).tolist() == 1.5
    assert Tensor.of_array(np.array([["a", "bc"]])).tolist() == [[b"a", b"bc"]]
    assert Tensor.of_array(np.array([b"\xff"], dtype=object)).tolist() == [b"\xff"]


def test_numpy_is_a_view_and_bfloat16_is_widened_exactly() -> None:
    tensor = Tensor.of("FP32", [1.0, 2.0])
    assert not tensor.numpy().flags.writeable
    wide = Tensor.of("BF16", [1.0, -2.5, 3.140625, math.inf]).numpy()
    assert wide.dtype == np.float32
    assert wide.tolist() == [1.0, -2.5, 3.140625, math.inf]
    assert math.isnan(Tensor.of("BF16", [math.nan]).tolist()[0])
    # Half way between two, it is the even one: down from 1 + 1/256, up from 1 + 3/256.
    assert Tensor.of("BF16", [1 + 1 / 256, 1 + 3 / 256]).tolist() == [1.0, 1 + 4 / 256]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Tensor("FP8", (1,), b"x"), "unknown datatype"),
        (lambda: Tensor("FP32", (2,), b"1234"), "needs 8 bytes"),
        (lambda: Tensor("FP32", (-1,), b""), "negative"),
        (lambda: Tensor("BYTES", (1,), b"\x09\0\0\0abc"), "ends? inside"),
        (lambda: Tensor.of("INT8", [300]), "no INT8"),
        (lambda: Tensor.of("INT8", [[1], [1, 2]]), "different lengths"),
        (lambda: Tensor.of("BOOL", [2]), "no BOOL"),
        (lambda: Tensor.of("BYTES", [3]), "no BYTES"),
        (lambda: Tensor.of("FP32", [1.0], [2]), "needs 2 values"),
        (lambda: Tensor.of_array(np.array([1j])), "complex128"),
        (lambda: Tensor.of("FP32", [math.nan]).json_values(), "JSON has no NaN"),
        (lambda: Tensor.of("BYTES", [b"\xff"]).json_values(), "utf-8"),
    ],
)
def test_what_can_be_no_tensor_is_refused_with_the_reason(make: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        make()


def test_a_scalar_has_no_shape() -> None:
    tensor = Tensor.of("INT64", 7)
    assert (tensor.shape, tensor.tolist(), tensor.numpy().item()) == ((), 7, 7)
