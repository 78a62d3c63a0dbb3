"""Connection: one HTTP connection, held to what a client may take of time and memory. Knows no route.

A client that sends or reads slowly, sends endless headers, or opens too many connections must cost nobody else
anything. What is in order costs a request under a microsecond here: no timer is started for what comes in one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.byte_budget import ByteBudget
from gateway.problem import problem_response
from schemas.errors import ErrorCode, InferenceError

_MIN_BYTES_PER_S = 1024  # whoever is slower than a modem of 1994 is not a client that means it
_FULL_RETRY_S = 1.0
_LINGER_S = 1.0


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What clients may take. Times in seconds.

    `header_timeout_s`: for a request's head, from its first byte, or from the connection's start. `body_timeout_s`: for
    its body, one second more for each 1,024 bytes that have come. `write_timeout_s`: without reading that many bytes
    per second of an answer. `keep_alive_s`: between two requests.
    """

    max_connections: int = 16_384
    max_header_bytes: int = 32 * 1024
    max_headers: int = 100
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    keep_alive_s: float = 75.0


class ConnectionConfig(uvicorn.Config):
    """uvicorn's configuration, with ours beside it."""

    limits = ConnectionLimits()
    budget = ByteBudget(0)
    event = "listen"


class Connection(HttpToolsProtocol):
    """uvicorn's protocol on a transport that gathers head and body, with limits."""

    def __init__(
        self,
        config: ConnectionConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.limits
        self._budget = config.budget
        self._is_ending = False  # answered for the last time; what comes is not looked at
        self._is_in_head = False
        self._head_bytes = 0  # of the head so far, what has just come not included
        self._chunk_bytes = 0
        self._body_bytes = 0
        self._body_since_s = 0.0
        self._has_body = False  # what has just come holds some of a body
        self._beside_bytes = 0  # what came since without any: trailers, whose parts the parser gathers
        self._unread_bytes = 0  # of an answer that the client has yet to read
        self._refusal: InferenceError | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Go on with a gathering transport; beyond the limit of connections, only to say so."""
        gathering = Gathering(transport, self._close_at_last)
        super().connection_made(gathering)  # type: ignore[arg-type]  # a transport in all that is used
        limit = self._limits.max_connections
        if len(self.connections) > limit:
            self.app = _answer_full
            if len(self.connections) > limit + limit // 8 + 8:  # not even that
                self.transport.abort()
                return
        self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        for timer in (self._head_timer, self._body_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._count_unread(0)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and start a timer only for a request that has not come as a whole."""
        if self._is_ending:
            return
        self._chunk_bytes = len(data)
        super().data_received(data)
        if self._is_in_head:
            self._wait_for_head()
        elif self.cycle is not None and self.cycle.more_body:
            self._wait_for_body()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head ends; one that is too large ends the connection before anything sees it."""
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if len(self.headers) > self._limits.max_headers:
            raise self._refuse_head(f"{len(self.headers)} headers", f"{self._limits.max_headers} headers")
        # The head is at most what came since it began: only then is it worth counting.
        if self._head_bytes + self._chunk_bytes > self._limits.max_header_bytes:
            size_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size_bytes > self._limits.max_header_bytes:
                raise self._refuse_head(f"{size_bytes} bytes of headers", f"{self._limits.max_header_bytes} bytes")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete."""
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request of ours with a problem document, and close."""
        refusal, self._refusal = self._refusal, None
        if refusal is None:
            remedy = "send HTTP/1.1"
            refusal = InferenceError(ErrorCode.INVALID_REQUEST, "this is no HTTP request", remedy=remedy)
        self._end(refusal)

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        super().pause_writing()
        self._count_unread(self.transport.get_write_buffer_size())
        self._start_write_timer()

    def resume_writing(self) -> None:
        """It has read most of it."""
        super().resume_writing()
        self._count_unread(0)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _wait_for_head(self) -> None:
        self._head_bytes += self._chunk_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            self._end(self._refuse_head(f"{self._head_bytes} bytes or more", f"{self._limits.max_header_bytes} bytes"))
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._on_head_timeout)

    def _wait_for_body(self) -> None:
        if self._body_timer is None:
            self._body_bytes, self._body_since_s, self._beside_bytes = 0, self.loop.time(), 0
            self._body_timer = self.loop.call_later(self._limits.body_timeout_s, self._on_body_timeout)
        self._body_bytes += self._chunk_bytes
        self._beside_bytes = 0 if self._has_body else self._beside_bytes + self._chunk_bytes
        self._has_body = False
        if self._beside_bytes > self._limits.max_header_bytes:
            self._end(self._refuse_head(f"{self._beside_bytes} bytes beside its body", "fewer"))

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._is_in_head:
            self._end(_too_slow("head", self._limits.header_timeout_s))
        else:  # not a byte came
            self.transport.close()

    def _on_body_timeout(self) -> None:
        self._body_timer = None
        if self.flow.read_paused:  # we are who is slow: what was queued behind another request waits unread
            self._body_since_s = self.loop.time()
        until_s = self._body_since_s + self._limits.body_timeout_s
        if self.cycle.response_complete:  # refused long ago, and it sends on and on
            self.transport.close()
            return
        until_s += self._body_bytes / _MIN_BYTES_PER_S
        if until_s > self.loop.time():
            self._body_timer = self.loop.call_at(until_s, self._on_body_timeout)
        else:
            self._end(_too_slow("body", self._limits.body_timeout_s))

    def _start_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self._on_write_timeout)

    def _on_write_timeout(self) -> None:
        self._write_timer = None
        left_bytes = self.transport.get_write_buffer_size()
        read_bytes = self._unread_bytes - left_bytes
        if read_bytes < _MIN_BYTES_PER_S * self._limits.write_timeout_s:
            self.transport.abort()
            return
        self._count_unread(left_bytes)
        self._start_write_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close what is idle."""
        self.transport.close()

    def _close_at_last(self) -> None:
        """The connection is being closed; a client that does not read what is left must not keep it open."""
        if self not in self.connections or self._write_timer is not None:
            return
        if self.transport.get_write_buffer_size():
            self._count_unread(self.transport.get_write_buffer_size())
            self._start_write_timer()

    def _count_unread(self, size_bytes: int) -> None:
        self._budget.add(size_bytes - self._unread_bytes)
        self._unread_bytes = size_bytes

    def _refuse_head(self, got: str, limit: str) -> InferenceError:
        self._refusal = InferenceError(
            ErrorCode.HEADERS_TOO_LARGE,
            f"the request's head has {got}, this gateway takes {limit}",
            field="headers",
            remedy="send fewer and shorter headers and a shorter path",
        )
        return self._refusal

    def _end(self, error: InferenceError) -> None:
        """Answer with an error, unless another answer is under way on this connection, and close."""
        cycle, is_ours = self.cycle, True
        if cycle is not None and not cycle.response_complete:
            is_ours = not self._is_in_head and cycle.more_body and not cycle.response_started and not self.pipeline
            cycle.disconnected = True  # to the application the client has gone
            cycle.message_event.set()
        if is_ours:
            status, headers, body = problem_response(error)
            headers += [(b"content-length", b"%d" % len(body)), CLOSE_HEADER]
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self._is_in_head = False
        self._linger()

    def _linger(self) -> None:
        """Close, but read on for a moment: a close with data unread would take the answer away from the client."""
        self._is_ending = True
        if not self.transport.can_write_eof():  # TLS cannot
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)


class Gathering:
    """A transport that writes head and body at once: uvicorn writes them apart, and a system call costs about 7 us.

    The second write of a tick takes the first one along; one that stays alone leaves when the tick ends. Waiting for
    the end of the tick with both would send all answers of a batch at the same moment, and so the next requests come.
    """

    def __init__(self, transport: Any, on_close: Callable[[], None]) -> None:
        self._transport = transport
        self._on_close = on_close
        self._held: list[bytes] = []
        self._call_soon = asyncio.get_running_loop().call_soon
        self.is_closing = transport.is_closing  # asked for each response: not by way of __getattr__

    def write(self, data: bytes) -> None:
        """Hold `data` for the next write, or until the tick ends."""
        self._held.append(data)
        if len(self._held) == 1:
            self._call_soon(self._flush)
        else:
            self._flush()

    def write_eof(self) -> None:
        """Write what is held, and nothing after it."""
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Write what is held, then close."""
        self._flush()
        self._transport.close()
        self._on_close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._transport.writelines(held)


def _too_slow(part: str, timeout_s: float) -> InferenceError:
    return InferenceError(
        ErrorCode.REQUEST_TIMEOUT,
        f"the request's {part} was not complete after {timeout_s:g} s",
        remedy="send faster, or less per request",
    )


async def _answer_full(scope: Scope, receive: Receive, send: Send) -> None:
    error = InferenceError(
        ErrorCode.UNAVAILABLE,
        "this gateway has as many connections as it takes",
        remedy="try again in a moment, and use fewer connections for more requests",
        retry_after_s=_FULL_RETRY_S,
    )
    status, headers, body = problem_response(error)
    headers += [(b"content-length", b"%d" % len(body)), CLOSE_HEADER]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
