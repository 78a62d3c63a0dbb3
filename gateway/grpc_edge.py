"""The edge of the gRPC side: how every call enters and leaves, whatever it asks for.

It learns who asks, gives the call an id, and turns whatever goes wrong into a status. Messages are bytes here: one that
cannot be read is the caller's fault and must be answered as such. Knows no call of the protocol and no Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from gateway.caller import Caller
from gateway.grpc_status import fail
from gateway.grpc_trail import GrpcTrail
from gateway.grpc_visit import Context, Visit
from schemas.errors import ErrorCode, InferenceError, invalid

_log = structlog.get_logger(__name__)

Authenticate = Callable[[Mapping[bytes, bytes]], Awaitable[Caller]]


Unary = Callable[[bytes, Visit], Awaitable[bytes]]
Streaming = Callable[[Context, Visit], Awaitable[None]]


class Edge:
    """Makes gRPC's method handlers of functions that raise InferenceError."""

    def __init__(self, *, next_id: Callable[[], str], authenticate: Authenticate | None, trail: GrpcTrail) -> None:
        self._next_id = next_id
        self._authenticate = authenticate
        self._trail = trail

    def unary(self, path: str, work: Unary, *, known: bool = True, is_inference: bool = False) -> Any:
        """The handler of a call with one request and one answer. `known`: callers must say who they are; other calls
        are asked every second for nobody's sake, and make no spans.
        """
        trail = self._trail

        async def run(body: bytes, context: Context) -> bytes:
            visit = Visit(context, self._next_id())
            span = trail.begin(path, visit) if known else None
            code, answer = None, b""
            try:
                if known and self._authenticate is not None:
                    visit.caller = await self._authenticate(visit.sent)
                answer = await work(body, visit)
                context.set_trailing_metadata(visit.trailing)
                return answer
            except asyncio.CancelledError:
                code = ErrorCode.CANCELLED
                raise
            except Exception as caught:
                error = error_of(caught, visit.request_id)
                code = error.code
            finally:
                sizes = {"bytes_in": len(body), "bytes_out": len(answer)}
                trail.end(path, visit, span, code, is_inference=is_inference, **sizes)
            await fail(context, error, visit.trailing)
            raise AssertionError("this is a bug: fail always raises")

        return grpc.unary_unary_rpc_method_handler(run)

    def stream(self, path: str, work: Streaming) -> Any:
        """The handler of a call with many requests and answers, which `work` reads and writes itself, and leaves a
        trail of each. Of the call itself there is one only when it fails.
        """

        async def run(_: object, context: Context) -> None:
            visit = Visit(context, self._next_id())
            try:
                if self._authenticate is not None:
                    visit.caller = await self._authenticate(visit.sent)
                context.set_trailing_metadata(visit.trailing)
                await work(context, visit)
                return
            except (asyncio.CancelledError, grpc.aio.BaseError):
                raise  # the latter is gRPC's own, of a caller that has gone in the middle of a write
            except Exception as caught:
                error = error_of(caught, visit.request_id)
            self._trail.end(path, visit, None, error.code, is_inference=False, bytes_in=0)
            await fail(context, error, visit.trailing)

        return grpc.stream_stream_rpc_method_handler(run)

    def unary_stream(self, work: Callable[[bytes, Context], Awaitable[None]]) -> Any:
        """The handler of a call with one request and answers that `work` writes itself; anybody may call it."""

        async def run(body: bytes, context: Context) -> None:
            try:
                await work(body, context)
                return
            except (asyncio.CancelledError, grpc.aio.BaseError):
                raise
            except Exception as caught:
                error = error_of(caught, self._next_id())
            await fail(context, error, ())

        return grpc.unary_stream_rpc_method_handler(run)


def refusing(error: InferenceError) -> Any:
    """The handler of a call that is answered with this error, whatever it says."""

    async def run(_: bytes, context: Context) -> bytes:
        await fail(context, error, ())
        raise AssertionError("this is a bug: fail always raises")

    return grpc.unary_unary_rpc_method_handler(run)


def error_of(caught: Exception, id_: str) -> InferenceError:
    """The error to tell a caller. Of what nobody expected, the log tells everything and the caller nothing."""
    if isinstance(caught, InferenceError):
        return caught
    if isinstance(caught, DecodeError):
        return invalid(
            "the message cannot be read",
            field="message",
            remedy="send what inference.proto describes: well-formed protobuf, and text in UTF-8",
        )
    _log.error("grpc_call_failed", request_id=id_, exc_info=caught)
    return InferenceError(ErrorCode.INTERNAL, f"an unexpected {type(caught).__name__}; the log says more")
