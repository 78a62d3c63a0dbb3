"""The Open Inference Protocol v2 codec: requests and responses as JSON, or as JSON followed by raw tensors.

Decoding shares memory with the body: raw tensors are views of it. Every malformed body is one InferenceError, never
another exception. Knows neither HTTP nor Kafka; both carry these bodies with the JSON part's length beside them
(the protocol's binary tensor data extension).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from schemas.errors import InferenceError, invalid
from schemas.request import InferenceRequest, RequestedOutput
from schemas.response import InferenceResponse
from schemas.tensor import Buffer, Tensor, tensor_from_list

HEADER_LENGTH = "inference-header-content-length"  # name of the HTTP and of the Kafka header, lower case

_T = TypeVar("_T")


class _TensorHeader(msgspec.Struct, omit_defaults=True, gc=False):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _RequestHeader(msgspec.Struct, omit_defaults=True, gc=False):
    inputs: tuple[_TensorHeader, ...]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: tuple[RequestedOutput, ...] = ()


class _ResponseHeader(msgspec.Struct, omit_defaults=True, gc=False):
    model_name: str
    model_version: str
    outputs: tuple[_TensorHeader, ...]
    id: str = ""
    parameters: dict[str, Any] = {}


_request_decoder = msgspec.json.Decoder(_RequestHeader)
_response_decoder = msgspec.json.Decoder(_ResponseHeader)
_encode = msgspec.json.Encoder().encode


def decode_request(body: Buffer, header_length: int | None = None) -> InferenceRequest:
    """Read a request. `header_length` is the JSON part's length in bytes; None: the whole body is JSON.

    Raises InferenceError(INVALID_REQUEST) naming field, value and remedy. Raw tensors are views of `body`.
    """
    view = memoryview(body)
    json_bytes = _json_part(view, header_length)
    header = _decode(_request_decoder, view[:json_bytes])
    tensors = _tensors(header.inputs, view, json_bytes)
    return InferenceRequest(tensors, header.outputs, header.id, header.parameters)


def encode_request(request: InferenceRequest) -> tuple[bytes, int]:
    """Write a request with all tensors raw: (body, length of its JSON part in bytes)."""
    head = _encode(
        _RequestHeader(
            tuple(_binary_header(tensor) for tensor in request.inputs), request.id, request.parameters, request.outputs
        )
    )
    return b"".join((head, *(tensor.data for tensor in request.inputs))), len(head)


def decode_response(body: Buffer, header_length: int | None = None) -> InferenceResponse:
    """Read a response, as `decode_request` reads a request."""
    view = memoryview(body)
    json_bytes = _json_part(view, header_length)
    header = _decode(_response_decoder, view[:json_bytes])
    tensors = _tensors(header.outputs, view, json_bytes)
    return InferenceResponse(header.model_name, header.model_version, tensors, header.id, header.parameters)


def encode_response(
    response: InferenceResponse, *, binary: Callable[[str], bool] = lambda name: True
) -> tuple[bytes, int | None]:
    """Write a response: (body, length of its JSON part in bytes, None when the whole body is JSON).

    `binary(name)` says for each output whether it is raw; by default all are. Raises InferenceError for BYTES that
    cannot be JSON text.
    """
    headers: list[_TensorHeader] = []
    raw: list[Buffer] = []
    for tensor in response.outputs:
        if binary(tensor.name):
            headers.append(_binary_header(tensor))
            raw.append(tensor.data)
        else:
            headers.append(_TensorHeader(tensor.name, tensor.datatype, tensor.shape, None, tensor.to_list()))
    head = _encode(
        _ResponseHeader(response.model_name, response.model_version, tuple(headers), response.id, response.parameters)
    )
    return (b"".join((head, *raw)), len(head)) if raw else (head, None)


def wants_binary(request: InferenceRequest) -> Callable[[str], bool]:
    """Which outputs the caller wants raw: `binary_data` on an output wins over the request's `binary_data_output`."""
    default = request.parameters.get("binary_data_output") is True
    chosen: Mapping[str, Any] = {output.name: output.parameters.get("binary_data") for output in request.outputs}
    if default and not chosen:
        return lambda name: True
    return lambda name: default if chosen.get(name) is None else chosen[name] is True


def _json_part(view: memoryview, header_length: int | None) -> int:
    if header_length is None:
        return len(view)
    if not 0 < header_length <= len(view):
        raise invalid(
            f"the JSON part is said to be {header_length} bytes of a body of {len(view)}",
            field=HEADER_LENGTH,
            value=header_length,
            remedy="send the length of the JSON part in bytes, or leave the header out when the body is only JSON",
        )
    return header_length


def _decode(decoder: msgspec.json.Decoder[_T], body: memoryview) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as cause:
        message, _, path = str(cause).partition(" - at `")
        raise invalid(
            f"the body is not an Open Inference Protocol v2 message: {message}",
            field=path.rstrip("`").removeprefix("$.") or "body",
            remedy="see the required fields of the protocol: inputs[] with name, datatype, shape and data",
        ) from cause
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise invalid(
            f"the body is not JSON: {cause}",
            field="body",
            value=bytes(body[:40]),
            remedy=f"send JSON; with raw tensors behind it, its length belongs in the header {HEADER_LENGTH}",
        ) from cause


def _tensors(headers: tuple[_TensorHeader, ...], view: memoryview, at_bytes: int) -> tuple[Tensor, ...]:
    tensors = []
    for header in headers:
        size_bytes = None if header.parameters is None else header.parameters.get("binary_data_size")
        if size_bytes is None:
            if header.data is None:
                raise _no_data(header, "has neither data nor binary_data_size")
            tensors.append(tensor_from_list(header.name, header.datatype, header.shape, header.data))
            continue
        if header.data is not None:
            raise _no_data(header, "has both data and binary_data_size")
        if type(size_bytes) is not int or not 0 <= size_bytes <= len(view) - at_bytes:
            raise invalid(
                f"tensor {header.name!r} claims {size_bytes!r} raw bytes, {len(view) - at_bytes} are left in the body",
                field=f"{header.name}.parameters.binary_data_size",
                value=size_bytes,
                remedy="raw tensors follow the JSON part in its order, each as long as its binary_data_size",
            )
        tensor = Tensor(header.name, header.datatype, header.shape, view[at_bytes : at_bytes + size_bytes])
        tensor.check()
        tensors.append(tensor)
        at_bytes += size_bytes
    if at_bytes != len(view):
        raise invalid(
            f"{len(view) - at_bytes} bytes follow the last raw tensor",
            field="body",
            value=len(view),
            remedy="the sum of all binary_data_size must be the length of the body behind its JSON part",
        )
    return tuple(tensors)


def _no_data(header: _TensorHeader, what: str) -> InferenceError:
    return invalid(
        f"tensor {header.name!r} {what}",
        field=f"{header.name}.data",
        remedy="give each tensor either data, or parameters.binary_data_size and raw bytes behind the JSON part",
    )


def _binary_header(tensor: Tensor) -> _TensorHeader:
    return _TensorHeader(tensor.name, tensor.datatype, tensor.shape, {"binary_data_size": len(tensor.data)})
