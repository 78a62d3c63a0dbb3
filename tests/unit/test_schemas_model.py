"""What a caller is told: the check against a model, names of topics, the table of errors, deadlines."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.deadline import Deadline
from schemas.errors import ErrorCode, ErrorDetail, InferenceError
from schemas.model import ModelMetadata, ModelRef, TensorSpec
from schemas.request import InferenceRequest, RequestedOutput
from schemas.tensor import ITEM_BYTES, Tensor
from schemas.topics import Topics, check_model_name

_BATCHED = ModelMetadata(
    "m",
    ("1", "3"),
    "p",
    8,
    (TensorSpec("a", "FP32", (2, -1)), TensorSpec("b", "INT64", (1,), optional=True)),
    (TensorSpec("y", "FP32", (1,)),),
)
_EXACT = ModelMetadata("m", ("1",), "p", 0, (TensorSpec("a", "FP32", (2, 3)),), (TensorSpec("y", "FP32", (1,)),))


def tensor(name: str, shape: tuple[int, ...], datatype: str = "FP32") -> Tensor:
    return Tensor(name, datatype, shape, b"")


def request(*inputs: Tensor, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    return InferenceRequest(inputs, tuple(RequestedOutput(name) for name in outputs))


def refusal(metadata: ModelMetadata, asked: InferenceRequest) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        metadata.check(asked)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.remedy
    return caught.value


def test_a_request_that_fits_is_counted_in_rows() -> None:
    assert _BATCHED.check(request(tensor("a", (5, 2, 9)))) == 5
    assert _BATCHED.check(request(tensor("b", (8, 1), "INT64"), tensor("a", (8, 2, 0)), outputs=("y",))) == 8
    assert _EXACT.check(request(tensor("a", (2, 3)))) == 1


@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((9, 2, 1), "[-1, 2, -1]"),
        ((0, 2, 1), "[-1, 2, -1]"),
        ((), "[-1, 2, -1]"),
        ((1, 3, 1), "-1"),
        ((1, 2), "-1"),
        ((1, 2, 1, 1), "-1"),
    ],
)
def test_a_wrong_shape_is_told_with_field_value_and_remedy(shape: tuple[int, ...], remedy: str) -> None:
    error = refusal(_BATCHED, request(tensor("a", shape)))
    assert (error.field, error.value) == ("inputs.a.shape", str(list(shape)))
    assert remedy in error.remedy
    assert "[-1, 2, -1]" in error.message + error.remedy


def test_without_batch_dimension_shapes_are_exact() -> None:
    error = refusal(_EXACT, request(tensor("a", (1, 2, 3))))
    assert (error.field, error.value) == ("inputs.a.shape", "[1, 2, 3]")
    assert "[2, 3]" in error.message


def test_inputs_of_different_batch_sizes_are_told() -> None:
    error = refusal(_BATCHED, request(tensor("a", (2, 2, 1)), tensor("b", (3, 1), "INT64")))
    assert (error.field, error.value) == ("inputs.b.shape", "[3, 1]")


@pytest.mark.parametrize("datatype", sorted(set(ITEM_BYTES) - {"FP32"}))
def test_a_wrong_datatype_is_told_with_field_value_and_remedy(datatype: str) -> None:
    error = refusal(_BATCHED, request(tensor("a", (1, 2, 1), datatype)))
    assert (error.field, error.value, error.remedy) == ("inputs.a.datatype", datatype, "send FP32")


def test_an_unknown_input_is_told_with_those_there_are() -> None:
    error = refusal(_BATCHED, request(tensor("a", (1, 2, 1)), tensor("c", (1,))))
    assert (error.field, error.value) == ("inputs", "c")
    assert "a, b" in error.remedy


def test_an_input_given_twice_is_told() -> None:
    error = refusal(_BATCHED, request(tensor("a", (1, 2, 1)), tensor("a", (1, 2, 1))))
    assert (error.field, error.value) == ("inputs", "a")
    assert "twice" in error.message


def test_a_missing_input_is_told_with_its_form() -> None:
    error = refusal(_BATCHED, request(tensor("b", (1, 1), "INT64")))
    assert (error.field, error.value) == ("inputs", "['b']")
    assert "'a': FP32 of shape [-1, 2, -1]" in error.remedy


def test_an_unknown_output_is_told_with_those_there_are() -> None:
    error = refusal(_BATCHED, request(tensor("a", (1, 2, 1)), outputs=("z",)))
    assert (error.field, error.value) == ("outputs", "z")
    assert "y" in error.remedy


_SHAPES = st.lists(st.integers(-3, 10), max_size=4).map(tuple)


@given(st.lists(st.builds(tensor, st.sampled_from("abc"), _SHAPES, st.sampled_from(["FP32", "INT64"])), max_size=3))
def test_any_request_fits_or_is_refused_with_field_and_remedy(inputs: list[Tensor]) -> None:
    try:
        assert 1 <= _BATCHED.check(request(*inputs)) <= 8
    except InferenceError as error:
        assert error.field.startswith("inputs")  # noqa: PT017 - both ends are right
        assert error.remedy  # noqa: PT017


def test_no_version_is_the_last_and_another_is_refused_with_those_there_are() -> None:
    assert (_BATCHED.resolve(""), _BATCHED.resolve("1")) == ("3", "1")
    with pytest.raises(InferenceError) as caught:
        _BATCHED.resolve("2")
    assert (caught.value.code, caught.value.value) == (ErrorCode.MODEL_NOT_FOUND, "2")
    assert "1, 3" in caught.value.remedy


def test_a_reference_reads_as_a_path() -> None:
    assert (str(ModelRef("m")), str(ModelRef("m", "3"))) == ("m", "m/3")


def test_topics_are_named_below_the_prefix() -> None:
    topics = Topics("acme")
    assert (topics.infer("m.v"), topics.results("m"), topics.dead("m")) == (
        "acme.infer.m.v",
        "acme.results.m",
        "acme.dead.m",
    )
    assert (topics.replies, topics.control, topics.group("gpu")) == ("acme.replies", "acme.control", "acme.gpu")


_MODEL_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True).filter(
    lambda name: not name.endswith(".high")
)


@given(_MODEL_NAMES)
def test_the_model_is_read_back_from_its_topic(model: str) -> None:
    assert Topics("p").model_of(Topics("p").infer(model)) == model


@pytest.mark.parametrize("topic", ["p.infer.", "q.infer.m", "p.results.m", "", "p.infer"])
def test_other_topics_have_no_model(topic: str) -> None:
    with pytest.raises(InferenceError):
        Topics("p").model_of(topic)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "ä", "a" * 201, "m.high", "a\n"])
def test_a_name_that_can_be_no_topic_is_refused(name: str) -> None:
    with pytest.raises(InferenceError) as caught:
        check_model_name(name)
    assert (caught.value.field, caught.value.code) == ("model", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "-a", "a" * 41])
def test_a_prefix_that_would_be_ambiguous_is_refused(prefix: str) -> None:
    with pytest.raises(InferenceError) as caught:
        Topics(prefix)
    assert caught.value.field == "prefix"


def test_the_table_of_errors_is_whole() -> None:
    wires = [code.wire for code in ErrorCode]
    assert len(set(wires)) == len(wires)
    for code in ErrorCode:
        assert ErrorCode.from_wire(code.wire) is code
        assert 400 <= code.http_status < 600
        assert code.grpc_status.isupper()
    assert {code.http_status for code in ErrorCode if code.retryable} == {408, 429, 503}
    assert ErrorCode.from_wire("of a later version") is ErrorCode.INTERNAL


@given(st.sampled_from(ErrorCode), st.text(), st.text(), st.text(), st.text())
def test_errors_travel_and_copy(code: ErrorCode, message: str, field: str, value: str, remedy: str) -> None:
    error = InferenceError(code, message, field=field, value=value, remedy=remedy)
    detail = error.detail()
    assert InferenceError.from_detail(detail).detail() == detail
    assert copy.copy(error).detail() == detail
    assert pickle.loads(pickle.dumps(error)).detail() == detail


def test_errors_quote_no_more_than_fits_beside_an_answer() -> None:
    error = InferenceError(ErrorCode.INTERNAL, "m" * 9999, field="f" * 9999, value="v" * 9999, remedy="r" * 9999)
    detail = error.detail()
    assert isinstance(detail, ErrorDetail)
    assert [len(part) for part in (detail.message, detail.field, detail.value, detail.remedy)] == [2000, 120, 120, 2000]
    assert len(str(error)) == 2000


@given(st.integers(0, 2**50), st.integers(0, 2**40), st.integers(0, 2**51))
def test_a_deadline_is_too_late_at_its_instant(now_ms: int, budget_ms: int, later_ms: int) -> None:
    deadline = Deadline.after(budget_ms, now_ms=now_ms)
    assert deadline.remaining_ms(now_ms) == budget_ms
    assert deadline.passed(later_ms) == (deadline.remaining_ms(later_ms) == 0)
    assert not deadline.passed(deadline.at_ms - 1)
    assert deadline.passed(deadline.at_ms)
