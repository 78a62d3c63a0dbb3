"""Requests and answers between the messages of the gRPC protocol and ours.

Raw tensors go through as they are. Pure: knows no server and no Kafka.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gateway.grpc_messages.inference_pb2 import InferParameter, ModelInferRequest, ModelInferResponse
from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.request import InferenceRequest, RequestedOutput
from schemas.response import InferenceResponse
from schemas.tensor import Tensor, pack_bytes_elements, tensor_from_list

InputTensor = ModelInferRequest.InferInputTensor

# The field of the typed contents that each datatype travels in. FP16 and BF16 have none.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
# Fields of messages as they are on the wire: number and kind "length-delimited" in one byte.
_RAW_OUTPUT = b"\x32"
_STREAM_ERROR = b"\x0a"
_STREAM_ANSWER = b"\x12"
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)


def request_of(message: ModelInferRequest) -> InferenceRequest:
    """The request in a message.

    Raises InferenceError: INVALID_REQUEST naming the field, UNSUPPORTED for shared memory.
    """
    raw, inputs = message.raw_input_contents, message.inputs
    if raw:
        if len(raw) != len(inputs):
            raise invalid(
                f"there are {len(raw)} raw contents for {len(inputs)} inputs",
                field="raw_input_contents",
                value=len(raw),
                remedy="send one entry for each input, in the order of inputs",
            )
        tensors = tuple([_raw_tensor(tensor, data) for tensor, data in zip(inputs, raw, strict=True)])
    else:
        tensors = tuple([_typed_tensor(tensor) for tensor in inputs])
    outputs = tuple([_requested(output) for output in message.outputs])
    parameters = parameters_of(message.parameters, "parameters") if message.parameters else {}
    return InferenceRequest(tensors, outputs, message.id, parameters)


def parameters_of(found: Mapping[str, InferParameter], where: str) -> dict[str, Any]:
    """Parameters as JSON values. Raises InferenceError(INVALID_REQUEST) for one that is none."""
    values: dict[str, Any] = {}
    for name, parameter in found.items():
        choice = parameter.WhichOneof("parameter_choice")
        value = None if choice is None else getattr(parameter, choice)
        if value is None or (choice == "double_param" and not math.isfinite(value)):
            raise invalid(
                f"the parameter {name!r} has no value that JSON has",
                field=f"{where}.{name}",
                value=value,
                remedy="set one of bool_param, int64_param, uint64_param, string_param, or double_param that is finite",
            )
        values[name] = value
    return values


def encode_answer(response: InferenceResponse) -> bytes:
    """A ModelInferResponse on the wire, its outputs raw.

    Written in two parts: what the message class would do with the tensors is copy them twice.
    """
    message = ModelInferResponse(model_name=response.model_name, model_version=response.model_version, id=response.id)
    parts: list[bytes | bytearray | memoryview] = [b""]
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        parts += (_RAW_OUTPUT, _varint(len(tensor.data)), tensor.data)
    for name, value in response.parameters.items():
        _set(message.parameters[name], value)
    parts[0] = message.SerializeToString()
    return b"".join(parts)


def encode_stream_answer(answer: bytes) -> bytes:
    """A ModelStreamInferResponse on the wire that holds this encoded answer."""
    return b"".join((_STREAM_ANSWER, _varint(len(answer)), answer))


def encode_stream_error(text: str, answer: bytes) -> bytes:
    """A ModelStreamInferResponse that tells of an error; `answer`, without outputs, says whose it is."""
    told = text.encode()
    return b"".join((_STREAM_ERROR, _varint(len(told)), told, encode_stream_answer(answer)))


def _raw_tensor(tensor: InputTensor, data: bytes) -> Tensor:
    if tensor.HasField("contents"):
        raise invalid(
            f"input {tensor.name!r} has contents although the request has raw_input_contents",
            field=f"inputs.{tensor.name}.contents",
            remedy="send all inputs raw, or all in their contents",
        )
    if tensor.parameters:
        _refuse_shared_memory(tensor.parameters, f"inputs.{tensor.name}.parameters")
    read = Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), data)
    read.check()
    return read


def _typed_tensor(tensor: InputTensor) -> Tensor:
    if tensor.parameters:
        _refuse_shared_memory(tensor.parameters, f"inputs.{tensor.name}.parameters")
    name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
    field = _CONTENTS.get(datatype)
    if field is None and datatype in ("FP16", "BF16"):
        raise invalid(
            f"input {name!r} is {datatype}, which has no typed contents",
            field=f"inputs.{name}.contents",
            remedy="send it in raw_input_contents",
        )
    contents = tensor.contents
    for filled, _ in contents.ListFields():
        if filled.name != field:
            raise invalid(
                f"input {name!r} is {datatype} and has its elements in {filled.name}",
                field=f"inputs.{name}.contents.{filled.name}",
                remedy=f"fill {field or 'the field of a datatype that there is'}, or send raw_input_contents",
            )
    if datatype == "BYTES":
        read = Tensor(name, datatype, shape, pack_bytes_elements(contents.bytes_contents))
        read.check()
        return read
    return tensor_from_list(name, datatype, shape, list(getattr(contents, field)) if field else [])


def _requested(output: ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    if not output.parameters:
        return RequestedOutput(output.name)
    where = f"outputs.{output.name}.parameters"
    _refuse_shared_memory(output.parameters, where)
    return RequestedOutput(output.name, parameters_of(output.parameters, where))


def _refuse_shared_memory(parameters: Mapping[str, InferParameter], where: str) -> None:
    for name in parameters:
        if name.startswith("shared_memory"):
            raise InferenceError(
                ErrorCode.UNSUPPORTED,
                "there is no shared memory: the model runs on another machine",
                field=f"{where}.{name}",
                remedy="send the tensor in raw_input_contents, and read outputs from raw_output_contents",
            )


def _set(parameter: InferParameter, value: Any) -> None:
    """Say a JSON value; what has no type of its own is told as text."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int) and value in _INT64:
        parameter.int64_param = value
    elif isinstance(value, int) and value in _UINT64:
        parameter.uint64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = str(value)


def _varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first, the last one without the high bit."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
