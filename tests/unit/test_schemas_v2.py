"""The v2 codec: bodies round trip, decoding shares memory, and whatever comes there is one kind of error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, InferenceError
from schemas.request import InferenceRequest, RequestedOutput
from schemas.response import InferenceResponse
from schemas.tensor import Tensor, tensor_from_list
from schemas.v2 import decode_request, decode_response, encode_request, encode_response, wants_binary
from tests.unit.test_schemas_tensor import nest, tensors

_PARAMETERS = st.dictionaries(st.text(max_size=5), st.booleans() | st.integers(-5, 5) | st.text(max_size=5), max_size=2)
_OUTPUTS = st.lists(st.builds(RequestedOutput, st.text(max_size=5), _PARAMETERS), max_size=2).map(tuple)
_REQUESTS = st.builds(
    InferenceRequest, st.lists(tensors(), max_size=3).map(tuple), _OUTPUTS, st.text(max_size=8), _PARAMETERS
)


def json_form(request: InferenceRequest, *, nested: bool) -> bytes:
    """The request as a caller without the binary extension writes it."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "data": nest(tensor.to_list(), tensor.shape) if nested else tensor.to_list(),
        }
        for tensor in request.inputs
    ]
    body = {"id": request.id, "inputs": inputs, "parameters": request.parameters}
    return json.dumps({**body, "outputs": msgspec.to_builtins(request.outputs)}).encode()


@given(_REQUESTS)
def test_requests_round_trip_in_binary(request: InferenceRequest) -> None:
    body, header_length = encode_request(request)
    assert decode_request(body, header_length) == request


@given(_REQUESTS, st.booleans())
def test_requests_in_json_are_the_same_as_in_binary(request: InferenceRequest, nested: bool) -> None:
    assert decode_request(json_form(request, nested=nested)) == request


@given(st.lists(tensors(), max_size=3), st.sampled_from(["all", "none", "first"]))
def test_responses_round_trip_with_any_choice_of_raw_outputs(outputs: list[Tensor], raw: str) -> None:
    response = InferenceResponse("m", "1", tuple(outputs), "id", {"batch_rows": 2})
    chosen = {output.name for output in (outputs if raw == "all" else outputs[:1] if raw == "first" else [])}
    body, header_length = encode_response(response, binary=lambda name: name in chosen)
    assert decode_response(body, header_length) == response
    assert (header_length is None) == (not chosen)


@given(st.lists(tensors(), min_size=1, max_size=3))
def test_decoded_raw_tensors_are_views_of_the_body(inputs: list[Tensor]) -> None:
    body, header_length = encode_request(InferenceRequest(tuple(inputs)))
    for tensor in decode_request(body, header_length).inputs:
        assert isinstance(tensor.data, memoryview)
        assert tensor.data.obj is body


def test_an_array_of_a_decoded_tensor_shares_memory_with_the_record() -> None:
    body, header_length = encode_request(InferenceRequest((tensor_from_list("x", "FP32", [4], [1, 2, 3, 4]),)))
    array = np.frombuffer(decode_request(body, header_length).inputs[0].data, np.float32)
    assert array.tolist() == [1, 2, 3, 4]
    assert np.shares_memory(array, np.frombuffer(body, np.uint8))


@given(st.binary(max_size=200), st.none() | st.integers(-5, 250))
def test_random_bodies_raise_only_our_error(body: bytes, header_length: int | None) -> None:
    for decode in (decode_request, decode_response):
        with pytest.raises(InferenceError) as caught:
            decode(body, header_length)  # no random bytes of this kind are a request
        assert caught.value.code is ErrorCode.INVALID_REQUEST


_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
_NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=3) | _ANY_JSON,
        "datatype": st.sampled_from(["FP32", "BYTES", "BOOL", "BF16", "x"]) | _ANY_JSON,
        "shape": st.lists(st.integers(-2, 4) | st.just(1 << 80), max_size=3) | _ANY_JSON,
        "data": st.lists(_ANY_JSON, max_size=4) | _ANY_JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 9) | _ANY_JSON}) | _ANY_JSON,
    },
)
_NEARLY_REQUEST = st.fixed_dictionaries({"inputs": st.lists(_NEARLY, max_size=3)}, optional={"id": _ANY_JSON})


@given(_NEARLY_REQUEST | _ANY_JSON, st.binary(max_size=12), st.integers(-2, 2) | st.none())
def test_nearly_requests_raise_only_our_error(body: Any, tail: bytes, shift: int | None) -> None:
    head = json.dumps(body).encode()
    try:
        request = decode_request(head + tail, None if shift is None else len(head) + shift)
    except InferenceError as error:
        assert error.code is ErrorCode.INVALID_REQUEST  # noqa: PT017 - both ends are right
        assert error.remedy  # noqa: PT017
        json.dumps(msgspec.to_builtins(error.detail()))
    else:
        for tensor in request.inputs:
            tensor.check()


@pytest.mark.parametrize(
    ("body", "header_length", "field"),
    [
        (b"", None, "body"),
        (b"{}", None, "body"),
        (b'{"inputs": 1}', None, "inputs"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "data": [1]}]}', None, "inputs[0]"),
        (
            b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": ["a"], "data": [1]}]}',
            None,
            "inputs[0].shape[0]",
        ),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}', None, "x.data"),
        (b'{"inputs": []}x', 14, "body"),
        (b'{"inputs": []}', 15, "inference-header-content-length"),
        (b'{"inputs": []}', 0, "inference-header-content-length"),
        (b"[" * 100_000, None, "body"),
        (b"\xff\xfe", None, "body"),
    ],
)
def test_malformed_bodies_are_told_by_their_field(body: bytes, header_length: int | None, field: str) -> None:
    with pytest.raises(InferenceError) as caught:
        decode_request(body, header_length)
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize("size_bytes", [-1, 5, 3, True, "4", None])
def test_raw_sizes_that_do_not_fit_the_body_are_refused(size_bytes: Any) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size_bytes}}
    head = json.dumps({"inputs": [tensor]}).encode()
    with pytest.raises(InferenceError) as caught:
        decode_request(head + b"abcd", len(head))
    assert caught.value.field in ("x.parameters.binary_data_size", "x.data", "body")


def test_data_and_raw_size_together_are_refused() -> None:
    tensor = {"name": "x", "datatype": "INT8", "shape": [1], "data": [1], "parameters": {"binary_data_size": 1}}
    head = json.dumps({"inputs": [tensor]}).encode()
    with pytest.raises(InferenceError, match="both data and binary_data_size"):
        decode_request(head + b"a", len(head))


@pytest.mark.parametrize(
    ("parameters", "outputs", "raw"),
    [
        ({}, {}, set()),
        ({"binary_data_output": True}, {}, {"a", "b"}),
        ({"binary_data_output": True}, {"a": {"binary_data": False}, "b": {}}, {"b"}),
        ({}, {"a": {"binary_data": True}, "b": {}}, {"a"}),
        ({"binary_data_output": "yes"}, {"a": {"binary_data": "no"}}, set()),
    ],
)
def test_binary_data_of_an_output_wins_over_that_of_the_request(
    parameters: dict[str, Any], outputs: dict[str, dict[str, Any]], raw: set[str]
) -> None:
    chosen = tuple(RequestedOutput(name, of_one) for name, of_one in outputs.items())
    wants = wants_binary(InferenceRequest((), chosen, "", parameters))
    assert {name for name in ("a", "b") if wants(name)} == raw
