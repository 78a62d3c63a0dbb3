"""Encoding: requests and responses of the Open Inference Protocol v2, as JSON or as JSON followed by raw tensors.

Knows no HTTP beyond the one header that tells where the JSON part ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.errors import UnreadableAnswerError
from tidegate.result import Result
from tidegate.tensor import Tensor

HEADER_LENGTH = "inference-header-content-length"
OCTETS = "application/octet-stream"
JSON = "application/json"


def request_document(
    inputs: Mapping[str, Tensor], outputs: Sequence[str], id_: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """A request as JSON only. Raises ValueError for values that JSON cannot hold."""
    tensors = [
        {"name": name, "datatype": tensor.datatype, "shape": tensor.shape, "data": tensor.json_values()}
        for name, tensor in inputs.items()
    ]
    return _document(tensors, outputs, id_, parameters)


def encode_binary(
    inputs: Mapping[str, Tensor], outputs: Sequence[str], id_: str, parameters: Mapping[str, Any]
) -> tuple[bytes, int]:
    """(body with all tensors raw, length of its JSON part in bytes); asks for raw outputs as well."""
    tensors = [
        {
            "name": name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for name, tensor in inputs.items()
    ]
    head = _dump(_document(tensors, outputs, id_, {**parameters, "binary_data_output": True}))
    return b"".join((head, *(tensor.data for tensor in inputs.values()))), len(head)


def encode_json(document: Any) -> bytes:
    """Compact JSON."""
    return _dump(document)


def decode_result(headers: Mapping[str, str], body: bytes) -> Result:
    """Read a response; raw outputs are views of `body`. Raises UnreadableAnswerError."""
    try:
        view = memoryview(body)
        length = headers.get(HEADER_LENGTH) or _length_in(headers.get("content-type", ""))
        at_bytes = len(view) if length is None else int(length)
        head = json.loads(bytes(view[:at_bytes]))
        outputs = {}
        for output in head["outputs"]:
            shape = tuple(output["shape"])
            size_bytes = (output.get("parameters") or {}).get("binary_data_size")
            if size_bytes is None:
                tensor = Tensor.of(output["datatype"], output["data"], shape)
            else:
                tensor = Tensor(output["datatype"], shape, view[at_bytes : at_bytes + size_bytes])
                at_bytes += size_bytes
            outputs[output["name"]] = tensor
        return Result(
            head["model_name"],
            head.get("model_version", ""),
            outputs,
            head.get("parameters") or {},
            head.get("id", ""),
            headers.get("x-request-id", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise UnreadableAnswerError("unreadable_answer", f"the answer is no inference response: {cause!r}") from cause


def decode_document(body: bytes) -> Any:
    """Read a JSON answer. Raises UnreadableAnswerError."""
    try:
        return json.loads(body)
    except ValueError as cause:
        shown = body[:100].decode("utf-8", "replace")
        raise UnreadableAnswerError("unreadable_answer", f"the answer is no JSON: {shown!r}") from cause


def _length_in(content_type: str) -> str | None:
    """The same, as a parameter of the content type: an object store tells no headers of the gateway's."""
    _, found, length = content_type.partition(f"{HEADER_LENGTH}=")
    return length.partition(";")[0].strip() if found else None


def _document(
    tensors: list[dict[str, Any]], outputs: Sequence[str], id_: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    document: dict[str, Any] = {"inputs": tensors}
    if id_:
        document["id"] = id_
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]
    if parameters:
        document["parameters"] = dict(parameters)
    return document


def _dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
