"""Body: a request's bytes as they arrive over HTTP, bounded and decoded from gzip or deflate; an answer's, encoded.

Knows no tensor and no route.
"""

from __future__ import annotations

import asyncio
import zlib

from starlette.types import Receive

from gateway.byte_budget import ByteBudget, Held
from schemas.errors import ErrorCode, InferenceError

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # zlib finds out which of them it is
_GZIP = 16 + zlib.MAX_WBITS
_RAW_DEFLATE = -zlib.MAX_WBITS  # what some clients send as deflate, against RFC 9110
_MOST_INFLATED = 1032  # times as many bytes as before: the format allows no more
_LEVEL = 1  # tensors shrink little, whatever time they are given
_INLINE_BYTES = 64 * 1024  # about a millisecond; beyond it a thread does it, zlib lets others run meanwhile
ENCODE_ABOVE_BYTES = 4096  # smaller answers fit into a few packets anyway


async def read_body(receive: Receive, sent: dict[bytes, bytes], max_bytes: int, held: Held | None = None) -> bytes:
    """The whole body, decoded where Content-Encoding says so. `held` grows to its size, before there are that many
    bytes; None: they are counted elsewhere.

    Raises InferenceError: OVERLOADED when `held` may not grow, PAYLOAD_TOO_LARGE above `max_bytes`, encoded or decoded,
    UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST for what does not decode, CANCELLED when the caller leaves before the end.
    """
    if held is None:
        held = ByteBudget(2 * max_bytes).hold()
    length = sent.get(b"content-length", b"0")
    if int(length) > max_bytes:  # the HTTP server lets digits only pass
        raise _too_large(int(length), max_bytes)
    held.grow_to(int(length))
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body", False) or message["type"] != "http.request":
        parts, size_bytes = [body], len(body)
        while message.get("more_body", False):
            if size_bytes > max_bytes:
                raise _too_large(size_bytes, max_bytes)
            held.grow_to(size_bytes)
            message = await receive()
            parts.append(message.get("body", b""))
            size_bytes += len(parts[-1])
        if message["type"] == "http.disconnect":
            raise InferenceError(ErrorCode.CANCELLED, "the caller left before the body was complete")
        body = b"".join(parts)
    if len(body) > max_bytes:
        raise _too_large(len(body), max_bytes)
    held.grow_to(len(body))
    encoding = sent.get(b"content-encoding")
    if encoding is None:
        return body
    held.grow_to(min(max_bytes, len(body) * _MOST_INFLATED))
    body = await _decoded(body, encoding, max_bytes)
    held.shrink_to(len(body))
    return body


class Bodies:
    """Reads bodies of at most `max_bytes` each, all that are held at a time being counted."""

    def __init__(self, budget: ByteBudget, max_bytes: int) -> None:
        self._budget = budget
        self._max_bytes = max_bytes

    def hold(self) -> Held:
        """A share of what may be held; to be released once the request is answered."""
        return self._budget.hold()

    async def read(self, receive: Receive, sent: dict[bytes, bytes], held: Held) -> bytes:
        """As `read_body`."""
        return await read_body(receive, sent, self._max_bytes, held)


def chosen_encoding(accepted: bytes, *, is_json: bool) -> bytes:
    """Gzip or deflate, where an Accept-Encoding header wants one of them, else nothing. gzip wins a tie.

    Raw tensors shrink little and slowly: they are encoded only for callers who name one encoding, not for those whose
    HTTP client lists all that it knows in each request.
    """
    if not is_json and b"," in accepted:
        return b""
    weights: dict[str, float] = {}
    for part in accepted.decode("latin-1").lower().split(","):
        name, _, parameters = part.partition(";")
        weights[name.strip()] = _weight(parameters)
    best = max(("gzip", "deflate"), key=lambda name: weights.get(name, 0.0))
    return best.encode() if weights.get(best, 0.0) > weights.get("identity", 0.0) else b""


async def encoded(body: bytes, encoding: bytes) -> bytes:
    """The body in this encoding, one of `chosen_encoding`."""
    if len(body) <= _INLINE_BYTES:
        return _encode(body, encoding)
    return await asyncio.to_thread(_encode, body, encoding)


async def _decoded(body: bytes, encoding: bytes, max_bytes: int) -> bytes:
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in (b"gzip", b"x-gzip", b"deflate"):
        raise InferenceError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"the content encoding {encoding.decode('latin-1')!r} is not known here",
            field="content-encoding",
            value=encoding.decode("latin-1"),
            remedy="send gzip, deflate, or no Content-Encoding",
        )
    try:
        if len(body) <= _INLINE_BYTES // 8:
            return _decode(body, max_bytes)
        return await asyncio.to_thread(_decode, body, max_bytes)
    except (zlib.error, EOFError) as cause:
        raise InferenceError(
            ErrorCode.INVALID_REQUEST,
            f"the body is no {name.decode()}: {cause}",
            field="content-encoding",
            value=name.decode(),
            remedy="encode the whole body, or leave Content-Encoding out",
        ) from cause


def _decode(body: bytes, max_bytes: int) -> bytes:
    """Inflate, but never to more than `max_bytes`, however small the body."""
    # A zlib stream begins with 8 in the low half of its first byte, and its first two bytes are divisible by 31.
    is_raw = body[:2] != b"\x1f\x8b" and (len(body) < 2 or body[0] & 15 != 8 or int.from_bytes(body[:2], "big") % 31)
    inflate = zlib.decompressobj(_RAW_DEFLATE if is_raw else _GZIP_OR_ZLIB)
    plain = inflate.decompress(body, max_bytes + 1)
    if len(plain) > max_bytes:
        raise _too_large(len(plain), max_bytes)
    if not inflate.eof:
        raise EOFError("it ends too early")
    if inflate.unused_data:
        raise EOFError(f"{len(inflate.unused_data)} bytes follow its end")
    return plain


def _encode(body: bytes, encoding: bytes) -> bytes:
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP if encoding == b"gzip" else zlib.MAX_WBITS)
    return deflate.compress(body) + deflate.flush()


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _too_large(size_bytes: int, max_bytes: int) -> InferenceError:
    return InferenceError(
        ErrorCode.PAYLOAD_TOO_LARGE,
        f"the body has {size_bytes} bytes or more, this gateway takes {max_bytes}",
        field="content-length",
        value=size_bytes,
        remedy="send less per request, raw tensors rather than JSON, or raise TIDEGATE_MAX_BODY_BYTES",
    )
