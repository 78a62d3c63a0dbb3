"""Outputs as classes: the highest values first, with labels where there are any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, TensorSpec
from schemas.request import InferenceRequest, RequestedOutput
from schemas.tensor import Tensor, iter_bytes_elements, tensor_from_list
from workers.classification import classified

LABELS = {"scores": ("cat", "dog")}


def asked(**parameters: object) -> InferenceRequest:
    return InferenceRequest((), (RequestedOutput("scores", dict(parameters)),))


def entries(tensor: Tensor) -> list[str]:
    assert tensor.datatype == "BYTES"
    return [bytes(item).decode() for item in iter_bytes_elements(tensor.name, tensor.data)]


def test_each_row_has_its_highest_values_with_the_labels_that_there_are() -> None:
    scores = tensor_from_list("scores", "FP32", [2, 3], [0.25, 0.5, 0.75, 3.0, -1.0, 2.0])
    (classes,) = classified((scores,), asked(classification=2), LABELS, batched=True)
    assert classes.shape == (2, 2)
    assert entries(classes) == ["0.750000:2", "0.500000:1:dog", "3.000000:0:cat", "2.000000:2"]
    classes.check()


def test_without_a_batch_dimension_all_is_one_row() -> None:
    scores = tensor_from_list("scores", "INT64", [2, 2], [7, 9, 9, (1 << 62) + 1])
    (classes,) = classified((scores,), asked(classification=99), {}, batched=False)
    assert classes.shape == (4,)
    assert entries(classes) == [f"{(1 << 62) + 1}:3", "9:1", "9:2", "7:0"]


@pytest.mark.parametrize("parameters", [{}, {"classification": 0}, {"binary_data": True}])
def test_what_is_not_asked_for_stays_as_it_is(parameters: dict[str, object]) -> None:
    scores = tensor_from_list("scores", "FP32", [1, 2], [0.25, 0.5])
    assert classified((scores,), asked(**parameters), LABELS, batched=True) == (scores,)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP64", "UINT8", "BOOL"])
def test_every_numeric_datatype_has_classes(datatype: str) -> None:
    scores = tensor_from_list("scores", datatype, [1, 3], [0, 1, 0])
    (classes,) = classified((scores,), asked(classification=1), {}, batched=True)
    (entry,) = entries(classes)
    value, _, index = entry.partition(":")
    assert (float(value), index) == (1.0, "1")


def test_an_empty_batch_has_no_classes() -> None:
    scores = tensor_from_list("scores", "FP32", [0, 3], [])
    (classes,) = classified((scores,), asked(classification=2), {}, batched=True)
    classes.check()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40), st.integers(1, 50))
def test_the_classes_are_the_first_of_a_stable_descending_sort(values: list[int], count: int) -> None:
    scores = Tensor("scores", "INT32", (1, len(values)), np.array(values, dtype=np.int32).tobytes())
    (classes,) = classified((scores,), asked(classification=count), {}, batched=True)
    wanted = sorted(range(len(values)), key=lambda index: -values[index])[:count]
    assert entries(classes) == [f"{values[index]}:{index}" for index in wanted]


@pytest.mark.parametrize(
    ("count", "datatype"), [("2", "FP32"), (-1, "FP32"), (True, "FP32"), (1.5, "FP32"), (1, "BYTES")]
)
def test_what_can_be_no_number_of_classes_is_refused(count: object, datatype: str) -> None:
    spec = TensorSpec("scores", datatype, (3,))
    metadata = ModelMetadata("m", ("1",), "x", 0, (), (spec,))
    with pytest.raises(InferenceError) as caught:
        metadata.check(asked(classification=count))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.field == "outputs.scores.parameters.classification"
