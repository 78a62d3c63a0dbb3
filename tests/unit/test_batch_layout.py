"""BatchLayout: padding to buckets, mask and length, reshapes, and each request's outputs as its caller expects them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InferenceError
from schemas.model import TensorSpec
from schemas.request import InferenceRequest
from schemas.tensor import Tensor, pack_bytes_elements
from workers.batch import assemble, signature_of
from workers.batch_layout import BatchLayout
from workers.model_config import ModelConfig, Padding

IDS = TensorSpec("IDS", "INT64", (-1,))
MASK = TensorSpec("MASK", "INT64", (-1,), optional=True)
LENGTH = TensorSpec("LENGTH", "INT32", (1,), optional=True)
OUT = TensorSpec("OUT", "INT64", (-1,))
SUM = TensorSpec("SUM", "INT64", (1,))
PADDING = Padding((4, 8), ("IDS",), value=7, mask_input="MASK", length_input="LENGTH", outputs=("OUT",))


def config(**more: Any) -> ModelConfig:
    return ModelConfig(
        "m", "device", **{"max_batch_size": 32, "inputs": (IDS, MASK, LENGTH), "outputs": (OUT, SUM), **more}
    )


def tensor(name: str, array: np.ndarray[Any, Any], datatype: str = "INT64") -> Tensor:
    return Tensor(name, datatype, array.shape, array.tobytes())


def request(length: int, rows: int = 1, first: int = 1) -> InferenceRequest:
    return InferenceRequest((tensor("IDS", np.arange(first, first + rows * length).reshape(rows, length)),))


def test_requests_of_one_bucket_share_a_batch_with_mask_and_length_filled_in() -> None:
    layout = BatchLayout(config(padding=PADDING))
    requests = [request(3), request(4, rows=2), request(1)]
    assert len({layout.signature(one) for one in requests}) == 1
    arrays = layout.assemble(requests, 4)
    assert arrays["IDS"].tolist() == [[1, 2, 3, 7], [1, 2, 3, 4], [5, 6, 7, 8], [1, 7, 7, 7]]
    assert arrays["MASK"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert arrays["LENGTH"].tolist() == [[3], [4], [4], [1]]
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "IDS": "int64",
        "MASK": "int64",
        "LENGTH": "int32",
    }


def test_other_buckets_ride_apart_and_a_longer_request_at_its_own_length() -> None:
    layout = BatchLayout(config(padding=PADDING))
    signatures = [layout.signature(request(length)) for length in (4, 5, 8, 9, 10)]
    assert signatures[1] == signatures[2]
    assert len(set(signatures)) == 4
    arrays = layout.assemble([request(9)], 1)
    assert arrays["IDS"].shape == (1, 9)
    assert arrays["MASK"].tolist() == [[1] * 9]


def test_a_mask_and_a_length_that_a_request_brings_are_kept_and_ride_with_those_filled_in() -> None:
    layout = BatchLayout(config(padding=PADDING))
    own = InferenceRequest(
        (
            tensor("LENGTH", np.array([[2]], np.int32), "INT32"),
            tensor("IDS", np.array([[1, 2, 3]])),
            tensor("MASK", np.array([[0, 1, 1]])),
        )
    )
    other = request(2)
    assert layout.signature(own) == layout.signature(other)
    arrays = layout.assemble([own, other], 2)
    assert arrays["MASK"].tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert arrays["LENGTH"].tolist() == [[2], [2]]


def test_padded_inputs_of_different_lengths_ride_as_they_are() -> None:
    two = (IDS, TensorSpec("MORE", "INT64", (-1,)))
    layout = BatchLayout(config(inputs=two, padding=Padding((4,), ("IDS", "MORE"))))
    odd = InferenceRequest((tensor("IDS", np.array([[1, 2]])), tensor("MORE", np.array([[1]]))))
    assert layout.signature(odd) == signature_of(odd, batched=True)
    assert layout.assemble([odd], 1)["IDS"].tolist() == [[1, 2]]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=5))
def test_every_caller_gets_its_own_rows_at_its_own_length(sizes: list[tuple[int, int]]) -> None:
    """An identity model: what comes back is what was sent."""
    layout = BatchLayout(config(padding=PADDING))
    requests = [request(length, rows, first=100 * number) for number, (length, rows) in enumerate(sizes)]
    rows = [rows for _, rows in sizes]
    arrays = layout.assemble(requests, sum(rows))
    total = arrays["IDS"].sum(axis=1, keepdims=True)
    outputs = layout.outputs({"OUT": arrays["IDS"], "SUM": total}, requests, rows)
    first_row = 0
    for sent, count in zip(requests, rows, strict=True):
        out, its_sum = outputs.rows(first_row, count, None)
        assert (out.shape, bytes(out.data)) == (sent.inputs[0].shape, bytes(sent.inputs[0].data))
        assert its_sum.shape == (count, 1)
        assert [one.name for one in outputs.rows(first_row, count, frozenset({"SUM"}))] == ["SUM"]
        first_row += count


def test_the_axis_to_pad_is_the_first_free_one_with_and_without_a_batch_dimension() -> None:
    image = TensorSpec("IMAGE", "FP16", (2, -1, 3))
    out = TensorSpec("OUT", "FP16", (2, -1, 3))
    for max_batch_size, lead in ((4, (1,)), (0, ())):
        layout = BatchLayout(
            config(
                max_batch_size=max_batch_size,
                inputs=(image,),
                outputs=(out,),
                padding=Padding((5,), ("IMAGE",), value=0.5, outputs=("OUT",)),
            )
        )
        data = np.ones((*lead, 2, 3, 3), np.float16)
        sent = InferenceRequest((tensor("IMAGE", data, "FP16"),))
        array = layout.assemble([sent], 1)["IMAGE"]
        assert array.shape == (*lead, 2, 5, 3)
        assert array[..., 3:, :].max() == array[..., 3:, :].min() == 0.5
        [cut] = layout.outputs({"OUT": array}, [sent], [1]).rows(0, 1, None)
        assert (cut.shape, bytes(cut.data)) == (data.shape, data.tobytes())


def test_bf16_is_padded_with_its_own_bits() -> None:
    spec = TensorSpec("IDS", "BF16", (-1,))
    layout = BatchLayout(config(inputs=(spec,), padding=Padding((2,), ("IDS",), value=1.0)))
    sent = InferenceRequest((tensor("IDS", np.array([[0]], np.uint16), "BF16"),))
    assert layout.assemble([sent], 1)["IDS"].tolist() == [[0, 0x3F80]]


def test_the_model_sees_reshapes_and_the_caller_dims() -> None:
    layout = BatchLayout(
        config(
            inputs=(TensorSpec("A", "INT64", (1,)), TensorSpec("B", "INT64", (-1, 4))),
            outputs=(TensorSpec("C", "INT64", (1,)), TensorSpec("D", "INT64", (-1, 4))),
            input_reshapes={"A": (), "B": (2, 2, -1)},
            output_reshapes={"C": (), "D": (2, 2, -1)},
        )
    )
    sent = InferenceRequest((tensor("A", np.array([[5], [6]])), tensor("B", np.arange(24).reshape(2, 3, 4))))
    arrays = layout.assemble([sent, sent], 4)
    assert (arrays["A"].shape, arrays["B"].shape) == ((4,), (4, 2, 2, 3))
    outputs = layout.outputs({"C": arrays["A"], "D": arrays["B"]}, [sent, sent], [2, 2])
    back = outputs.rows(2, 2, None)
    assert [(one.shape, bytes(one.data)) for one in back] == [(one.shape, bytes(one.data)) for one in sent.inputs]


def test_an_output_that_is_not_of_the_reshape_is_refused_for_its_rows() -> None:
    layout = BatchLayout(config(outputs=(SUM,), output_reshapes={"SUM": ()}))
    with pytest.raises(InferenceError, match="3 rows"):
        layout.outputs({"SUM": np.zeros((2,), np.int64)}, [request(1, rows=3)], [3])


def test_text_is_cut_back_too() -> None:
    text = TensorSpec("OUT", "BYTES", (-1,))
    layout = BatchLayout(config(outputs=(text,), padding=Padding((3,), ("IDS",), outputs=("OUT",))))
    sent = request(2)
    array = np.array([[b"a", b"bc", b"pad"]], dtype=np.object_)
    [cut] = layout.outputs({"OUT": array}, [sent], [1]).rows(0, 1, None)
    assert (cut.shape, bytes(cut.data)) == ((1, 2), pack_bytes_elements([b"a", b"bc"]))


def test_a_model_without_padding_and_reshapes_is_stacked_as_ever() -> None:
    layout = BatchLayout(config())
    sent = request(3, rows=2)
    assert layout.signature(sent) == signature_of(sent, batched=True)
    array = layout.assemble([sent], 2)["IDS"]
    assert np.shares_memory(array, np.frombuffer(sent.inputs[0].data, dtype=np.uint8))
    assert array.tolist() == assemble([sent], 2)["IDS"].tolist()


def test_requests_with_other_sets_of_inputs_ride_apart() -> None:
    layout = BatchLayout(config())
    with_mask = InferenceRequest((*request(3).inputs, tensor("MASK", np.ones((1, 3), np.int64))))
    assert layout.signature(with_mask) != layout.signature(request(3))
