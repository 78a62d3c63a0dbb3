"""The edge of the gRPC side: how every call enters and leaves, whatever it asks for.

It learns who asks, gives the call an id, and turns whatever goes wrong into a status. Messages are bytes here: one that
cannot be read is the caller's fault and must be answered as such. Knows no call of the protocol and no Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from gateway.caller import ANYONE, Caller
from gateway.grpc_status import Metadata, fail
from gateway.traceparent import traceparent_in
from schemas.errors import ErrorCode, InferenceError, invalid

_log = structlog.get_logger(__name__)

_CLIENT_CLOSED = 499  # as the table of errors has it for CANCELLED

Context = Any  # grpc.aio's servicer context: its stubs are generic over messages, and ours are bytes
Authenticate = Callable[[Mapping[bytes, bytes]], Awaitable[Caller]]


class Visit:
    """One call: what came with it. `sent` is its metadata, names in lower case. `id` is unique among all gateways."""

    __slots__ = ("_context", "caller", "id", "sent", "traceparent")

    def __init__(self, context: Context, id_: str) -> None:
        self._context = context
        self.id = id_
        self.sent: dict[bytes, bytes] = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in context.invocation_metadata()
        }
        self.caller = ANYONE
        self.traceparent = traceparent_in(self.sent).decode()

    @property
    def origin(self) -> str:
        """The caller's address."""
        return str(self._context.peer())

    @property
    def left_s(self) -> float | None:
        """Seconds until the caller's deadline; None: it has set none."""
        left_s: float | None = self._context.time_remaining()
        return left_s

    @property
    def trailing(self) -> Metadata:
        """What every answer ends with."""
        return (("x-request-id", self.id), ("traceparent", self.traceparent))


Unary = Callable[[bytes, Visit], Awaitable[bytes]]
Streaming = Callable[[Context, Visit], Awaitable[None]]


class Edge:
    """Makes gRPC's method handlers of functions that raise InferenceError."""

    def __init__(
        self,
        *,
        next_id: Callable[[], str],
        authenticate: Authenticate | None,
        count: Callable[[int, float], None],
    ) -> None:
        """`count` is told of each answered inference: the HTTP status of the same meaning, and how long it took."""
        self._next_id = next_id
        self._authenticate = authenticate
        self._count = count

    def unary(self, work: Unary, *, known: bool = True, counted: bool = False) -> Any:
        """The handler of a call with one request and one answer. `known`: callers must say who they are."""

        async def run(body: bytes, context: Context) -> bytes:
            begun_s = time.perf_counter()
            visit = Visit(context, self._next_id())
            status = 200
            try:
                if known and self._authenticate is not None:
                    visit.caller = await self._authenticate(visit.sent)
                answer = await work(body, visit)
                context.set_trailing_metadata(visit.trailing)
                return answer
            except asyncio.CancelledError:
                status = _CLIENT_CLOSED
                raise
            except Exception as caught:
                error = error_of(caught, visit.id)
                status = error.code.http_status
            finally:
                if counted:
                    self._count(status, time.perf_counter() - begun_s)
            await fail(context, error, visit.trailing)
            raise AssertionError("this is a bug: fail always raises")

        return grpc.unary_unary_rpc_method_handler(run)

    def stream(self, work: Streaming) -> Any:
        """The handler of a call with many requests and answers, which `work` reads and writes itself."""

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
                error = error_of(caught, visit.id)
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
