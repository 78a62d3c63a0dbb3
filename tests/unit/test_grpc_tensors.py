"""Requests and answers between gRPC's messages and ours."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc_messages.inference_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from gateway.grpc_status import STATUS, StillRunsError, message_of, metadata_of
from gateway.grpc_tensors import encode_answer, encode_stream_answer, encode_stream_error, request_of
from schemas.errors import ErrorCode, InferenceError
from schemas.response import InferenceResponse
from schemas.tensor import ITEM_BYTES, Tensor, tensor_from_list
from schemas.v2 import decode_request, encode_request

VALUES: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32768, 32767]),
    "INT32": ("int_contents", [-(1 << 31), (1 << 31) - 1]),
    "INT64": ("int64_contents", [-(1 << 63), (1 << 63) - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 65535]),
    "UINT32": ("uint_contents", [0, (1 << 32) - 1]),
    "UINT64": ("uint64_contents", [0, (1 << 64) - 1]),
    "FP32": ("fp32_contents", [1.5, -2.25]),
    "FP64": ("fp64_contents", [1e300, -1e-300]),
    "BYTES": ("bytes_contents", [b"\xff\x00", b""]),
}


def message(datatype: str = "FP32", shape: tuple[int, ...] = (2,), **contents: Any) -> ModelInferRequest:
    """A request of one input with these typed contents."""
    asked = ModelInferRequest(model_name="m", id="mine")
    asked.inputs.add(name="x", datatype=datatype, shape=shape)
    if contents:
        asked.inputs[0].contents.CopyFrom(InferTensorContents(**contents))
    return asked


def refused(asked: ModelInferRequest) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        request_of(asked)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize("datatype", VALUES)
def test_typed_contents_become_the_same_bytes_as_raw_ones(datatype: str) -> None:
    field, values = VALUES[datatype]
    (typed,) = request_of(message(datatype, (2,), **{field: values})).inputs
    if datatype == "BYTES":
        assert typed.data == b"\x02\x00\x00\x00\xff\x00\x00\x00\x00\x00"
    else:
        assert typed == tensor_from_list("x", datatype, (2,), values)
    raw = message(datatype)
    raw.raw_input_contents.append(bytes(typed.data))
    assert request_of(raw).inputs == (typed,)


def test_every_datatype_has_typed_contents_or_is_said_to_have_none() -> None:
    assert set(VALUES) | {"FP16", "BF16"} == set(ITEM_BYTES)
    for datatype in ("FP16", "BF16"):
        error = refused(message(datatype, fp32_contents=[1, 2]))
        assert (error.field, "raw_input_contents" in error.remedy) == ("inputs.x.contents", True)


def test_an_empty_tensor_needs_no_contents() -> None:
    assert request_of(message("FP32", (0, 4))).inputs[0].data == b""


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (message("FP32", int_contents=[1, 2]), "inputs.x.contents.int_contents"),
        (message("FP32", fp32_contents=[1, 2], int_contents=[1]), "inputs.x.contents.int_contents"),
        (message("FP32", fp32_contents=[1]), "x.data"),
        (message("FP32"), "x.data"),
        (message("INT8", int_contents=[1, 128]), "x.data"),
        (message("UINT16", uint_contents=[1, 65536]), "x.data"),
        (message("FP33", fp32_contents=[1, 2]), "inputs.x.contents.fp32_contents"),
        (message("FP33"), "x.datatype"),
        (message("FP32", (-1,), fp32_contents=[1]), "x.shape"),
        (message("FP32", (1 << 62, 1 << 62)), "x.shape"),
        (message("BYTES", bytes_contents=[b"a"]), "x.data"),
    ],
)
def test_contents_that_do_not_fit_name_the_field(asked: ModelInferRequest, field: str) -> None:
    error = refused(asked)
    assert (error.code, error.field) == (ErrorCode.INVALID_REQUEST, field)


def test_raw_and_typed_contents_are_not_mixed() -> None:
    asked = message("FP32", fp32_contents=[1, 2])
    asked.raw_input_contents.append(bytes(8))
    assert refused(asked).field == "inputs.x.contents"


@pytest.mark.parametrize("entries", [[bytes(8), bytes(8)], [bytes(7)], [b""]])
def test_raw_contents_that_do_not_fit_are_refused(entries: list[bytes]) -> None:
    asked = message("FP32")
    asked.raw_input_contents.extend(entries)
    assert refused(asked).code is ErrorCode.INVALID_REQUEST


def test_parameters_keep_their_types() -> None:
    asked = message("FP32", fp32_contents=[1, 2])
    values = {"a": True, "b": -5, "c": (1 << 64) - 1, "d": "text", "e": 0.5}
    for name, choice in zip(values, ("bool", "int64", "uint64", "string", "double"), strict=True):
        asked.parameters[name].CopyFrom(InferParameter(**cast("Any", {f"{choice}_param": values[name]})))
    asked.outputs.add(name="y").parameters["classification"].int64_param = 3
    read = request_of(asked)
    assert (read.parameters, read.id) == (values, "mine")
    assert (read.outputs[0].name, read.outputs[0].parameters) == ("y", {"classification": 3})
    assert decode_request(*encode_request(read)).parameters == values


@pytest.mark.parametrize("parameter", [InferParameter(), InferParameter(double_param=float("nan"))])
def test_a_parameter_without_a_value_is_refused(parameter: InferParameter) -> None:
    asked = message("FP32", fp32_contents=[1, 2])
    asked.parameters["p"].CopyFrom(parameter)
    assert refused(asked).field == "parameters.p"


def test_shared_memory_is_unsupported_of_inputs_and_outputs() -> None:
    region = triton.InferInput("x", [2], "FP32")
    region.set_shared_memory("region", 8)
    asked = message("FP32")
    asked.inputs[0].MergeFromString(region._get_tensor().SerializeToString())
    assert refused(asked).code is ErrorCode.UNSUPPORTED
    asked = message("FP32", fp32_contents=[1, 2])
    asked.outputs.add(name="y").parameters["shared_memory_region"].string_param = "region"
    assert refused(asked).code is ErrorCode.UNSUPPORTED


@given(
    outputs=st.lists(st.tuples(st.text(min_size=1), st.binary(max_size=300)), max_size=4),
    id_=st.text(),
    parameters=st.dictionaries(
        st.text(), st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text()
    ),
)
def test_an_answer_reads_back(outputs: list[tuple[str, bytes]], id_: str, parameters: dict[str, Any]) -> None:
    tensors = tuple(Tensor(name, "UINT8", (len(data),), memoryview(data)) for name, data in outputs)
    answer = encode_answer(InferenceResponse("m", "1", tensors, id_, parameters))
    read = ModelInferResponse.FromString(answer)
    assert (read.model_name, read.model_version, read.id) == ("m", "1", id_)
    assert [(each.name, each.datatype, list(each.shape)) for each in read.outputs] == [
        (name, "UINT8", [len(data)]) for name, data in outputs
    ]
    assert list(read.raw_output_contents) == [data for _, data in outputs]
    got = {name: getattr(value, value.WhichOneof("parameter_choice") or "") for name, value in read.parameters.items()}
    assert repr(got) == repr({name: parameters[name] for name in got})
    assert got.keys() == parameters.keys()
    assert ModelStreamInferResponse.FromString(encode_stream_answer(answer)).infer_response == read
    told = ModelStreamInferResponse.FromString(encode_stream_error(id_, answer))
    assert (told.error_message, told.infer_response) == (id_, read)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_100_000])
def test_the_length_of_a_tensor_is_written_as_protobuf_does(size: int) -> None:
    data = bytes(size)
    answer = encode_answer(InferenceResponse("m", "1", (Tensor("y", "UINT8", (size,), data),)))
    expected = ModelInferResponse(model_name="m", model_version="1", raw_output_contents=[data])
    expected.outputs.add(name="y", datatype="UINT8", shape=[size])
    assert answer == expected.SerializeToString()


def test_what_json_has_beside_numbers_and_text_is_told_as_text() -> None:
    answer = encode_answer(InferenceResponse("m", "1", (), "", {"list": [1], "none": None, "big": 1 << 70}))
    read = ModelInferResponse.FromString(answer).parameters
    assert {name: read[name].string_param for name in read} == {"list": "[1]", "none": "None", "big": str(1 << 70)}


def test_every_code_of_the_table_has_its_status() -> None:
    assert {code: status.name for code, status in STATUS.items()} == {code: code.grpc_status for code in ErrorCode}


@given(st.text(max_size=5000), st.text(max_size=500), st.text(max_size=5000))
def test_a_message_of_any_error_fits_into_what_callers_take_of_metadata(text: str, value: str, remedy: str) -> None:
    error = InferenceError(ErrorCode.INVALID_REQUEST, text, field="f", value=value, remedy=remedy)
    told = message_of(error)
    assert 3 * len(told.encode()) <= 6000
    if len(text) < 300:
        assert error.message in told


def test_the_longest_error_of_all_fits_too() -> None:
    error = InferenceError(ErrorCode.MODEL_FAILED, "ü" * 2000, field="f", remedy="é" * 2000)
    assert len(message_of(error).encode()) == 2000


def test_an_error_tells_programs_its_code_when_to_come_again_and_the_job() -> None:
    busy = InferenceError(ErrorCode.OVERLOADED, "full")
    assert metadata_of(busy) == (("tidegate-code", "overloaded"), ("retry-after", "1"))
    assert dict(metadata_of(StillRunsError("abc"))) == {"tidegate-code": "deadline_exceeded", "tidegate-job-id": "abc"}
    invalid = InferenceError(ErrorCode.INVALID_REQUEST, "no", field="x", value=5, remedy="send 6")
    assert (message_of(invalid), metadata_of(invalid)) == ("no [x: 5]; send 6", (("tidegate-code", "invalid_request"),))
    assert json.dumps(message_of(invalid))


def test_the_clients_own_encoding_of_text_is_read() -> None:
    tensor = triton.InferInput("x", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"one", "zwölf"], np.object_))
    asked = message("BYTES")
    asked.raw_input_contents.append(tensor._get_content())
    assert request_of(asked).inputs[0].to_list() == ["one", "zwölf"]
