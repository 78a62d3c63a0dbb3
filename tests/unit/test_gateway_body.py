"""Bodies: encodings both ways, never more bytes than allowed; and raw bodies as requests."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.body import chosen_encoding, encoded, read_body
from gateway.byte_budget import ByteBudget
from gateway.raw_body import raw_request
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, TensorSpec
from schemas.tensor import iter_bytes_elements

MAX_BYTES = 10_000
ENCODINGS: list[tuple[bytes, Any]] = [
    (b"gzip", gzip.compress),
    (b"X-GZIP", gzip.compress),
    (b"deflate", zlib.compress),
]


def raw_deflate(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()


def read(parts: list[bytes], headers: dict[bytes, bytes], *, leaves: bool = False) -> bytes:
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if leaves:
        messages.append({"type": "http.disconnect"})
    else:
        messages[-1]["more_body"] = False
    coming = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(coming)

    return asyncio.run(read_body(receive, headers, MAX_BYTES, ByteBudget(1 << 30).hold()))


@given(
    st.binary(max_size=MAX_BYTES),
    st.sampled_from(ENCODINGS),
    st.integers(1, 5),
)
def test_an_encoded_body_reads_as_what_it_was(plain: bytes, encoding: tuple[bytes, Any], pieces: int) -> None:
    name, encode = encoding
    body = encode(plain)
    size = len(body) // pieces + 1
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    if len(body) <= MAX_BYTES:
        assert read(parts, {b"content-encoding": name}) == plain
    assert read([plain], {b"content-encoding": b"identity"}) == plain


def test_deflate_without_its_frame_reads_too() -> None:
    assert read([raw_deflate(b"hello " * 100)], {b"content-encoding": b"deflate"}) == b"hello " * 100


@pytest.mark.parametrize("encode", [gzip.compress, zlib.compress, raw_deflate])
def test_a_small_body_that_grows_beyond_the_limit_is_refused(encode: Any) -> None:
    with pytest.raises(InferenceError) as caught:
        read([encode(bytes(50_000_000))[:MAX_BYTES]], {b"content-encoding": b"gzip"})
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("body", "encoding", "code"),
    [
        (b"no gzip at all", b"gzip", ErrorCode.INVALID_REQUEST),
        (gzip.compress(b"cut off")[:-4], b"gzip", ErrorCode.INVALID_REQUEST),
        (gzip.compress(b"x") + b"more", b"gzip", ErrorCode.INVALID_REQUEST),
        (b"", b"deflate", ErrorCode.INVALID_REQUEST),
        (b"{}", b"br", ErrorCode.UNSUPPORTED_MEDIA_TYPE),
        (b"{}", b"gzip, gzip", ErrorCode.UNSUPPORTED_MEDIA_TYPE),
    ],
)
def test_what_does_not_decode_names_the_header(body: bytes, encoding: bytes, code: ErrorCode) -> None:
    with pytest.raises(InferenceError) as caught:
        read([body], {b"content-encoding": encoding})
    assert (caught.value.code, caught.value.field) == (code, "content-encoding")


@pytest.mark.parametrize(
    ("parts", "headers"),
    [
        ([b"x"], {b"content-length": b"10001"}),
        ([b"x" * 10_001], {}),
        ([b"x" * 6000, b"x" * 6000], {}),
        ([b"x" * 10_001, b""], {}),
    ],
)
def test_more_than_the_limit_is_refused(parts: list[bytes], headers: dict[bytes, bytes]) -> None:
    with pytest.raises(InferenceError) as caught:
        read(parts, headers)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_a_caller_who_leaves_midway_is_no_error_of_ours() -> None:
    with pytest.raises(InferenceError) as caught:
        read([b"half"], {}, leaves=True)
    assert caught.value.code is ErrorCode.CANCELLED


@pytest.mark.parametrize(
    ("accepted", "is_json", "chosen"),
    [
        (b"gzip", True, b"gzip"),
        (b"deflate", True, b"deflate"),
        (b"gzip, deflate, br", True, b"gzip"),
        (b"gzip;q=0.1, deflate;q=0.9", True, b"deflate"),
        (b"gzip;q=0", True, b""),
        (b"identity, gzip;q=0.5", True, b""),
        (b"br", True, b""),
        (b"", True, b""),
        (b"gzip;q=nonsense", True, b""),
        (b"gzip", False, b"gzip"),
        (b"gzip, deflate", False, b""),
    ],
)
def test_an_answer_is_encoded_as_its_caller_likes(accepted: bytes, is_json: bool, chosen: bytes) -> None:
    assert chosen_encoding(accepted, is_json=is_json) == chosen


@pytest.mark.parametrize("size_bytes", [5000, 500_000])
@pytest.mark.parametrize(("name", "decode"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)])
def test_an_encoded_answer_decodes(name: bytes, decode: Any, size_bytes: int) -> None:
    body = bytes(range(250)) * (size_bytes // 250)
    assert decode(asyncio.run(encoded(body, name))) == body


def metadata(*inputs: TensorSpec, max_batch_size: int = 8) -> ModelMetadata:
    return ModelMetadata("m", ("1",), "x", max_batch_size, inputs, ())


@pytest.mark.parametrize(
    ("spec", "max_batch_size", "size_bytes", "shape"),
    [
        (TensorSpec("x", "FP32", (4,)), 8, 16, (1, 4)),
        (TensorSpec("x", "FP32", (2, 2)), 0, 16, (2, 2)),
        (TensorSpec("x", "INT64", (3, -1)), 8, 48, (1, 3, 2)),
        (TensorSpec("x", "FP32", (-1,)), 8, 0, (1, 0)),
        (TensorSpec("x", "UINT8", (0,)), 0, 0, (0,)),
    ],
)
def test_a_raw_body_is_one_row_of_the_one_input(
    spec: TensorSpec, max_batch_size: int, size_bytes: int, shape: tuple[int, ...]
) -> None:
    optional = TensorSpec("y", "FP32", (1,), optional=True)
    model = metadata(optional, spec, max_batch_size=max_batch_size)
    request = raw_request(bytes(size_bytes), model)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.shape, request.parameters) == ("x", shape, {"binary_data_output": True})
    model.check(request)


def test_a_raw_body_for_bytes_is_the_one_element() -> None:
    model = metadata(TensorSpec("x", "BYTES", (1,)))
    request = raw_request(b"a picture", model)
    (tensor,) = request.inputs
    assert (tensor.shape, [bytes(item) for item in iter_bytes_elements("x", tensor.data)]) == ((1, 1), [b"a picture"])
    model.check(request)


@pytest.mark.parametrize(
    ("inputs", "size_bytes"),
    [
        ((TensorSpec("x", "FP32", (4,)),), 15),
        ((TensorSpec("x", "FP32", (4,)),), 32),
        ((TensorSpec("x", "FP32", (4, -1)),), 20),
        ((TensorSpec("x", "FP32", (-1, -1)),), 16),
        ((TensorSpec("x", "UINT8", (0,)),), 1),
        ((TensorSpec("x", "FP32", (0, -1)),), 4),
        ((TensorSpec("x", "BYTES", (2,)),), 4),
        ((TensorSpec("x", "FP32", (4,)), TensorSpec("y", "FP32", (4,))), 16),
        ((), 0),
    ],
)
def test_a_raw_body_that_fits_no_input_is_refused(inputs: tuple[TensorSpec, ...], size_bytes: int) -> None:
    with pytest.raises(InferenceError) as caught:
        raw_request(bytes(size_bytes), metadata(*inputs))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.remedy
