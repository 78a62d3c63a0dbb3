"""Server: the HTTP server under the application, as the gateway wants it. Knows no route."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Self

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_log = structlog.get_logger(__name__)


class Server(uvicorn.Server):
    """uvicorn's server in a task of ours: without its signal handlers, the service has its own."""

    @classmethod
    def of(cls, app: ASGIApp, *, host: str, port: int) -> Self:
        """A server of this application that listens once `serve` runs, until `should_exit` is set."""
        return cls(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="none",  # ours runs already
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,  # longer than the usual 60 s of a proxy in front, or it meets closed connections
                timeout_graceful_shutdown=2,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where: with port 0 that is news. Raises OSError."""
        try:
            await super().startup(sockets)
        except SystemExit as cause:  # it has logged why; to end the process is not its to do
            raise OSError(f"cannot listen on {self.config.host}:{self.config.port}") from cause
        for server in self.servers:
            for listener in server.sockets:
                host, port, *_ = listener.getsockname()
                _log.info("listen", host=host, port=port)


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol on a transport that gathers head and body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Go on with a gathering transport."""
        super().connection_made(_Gathering(transport))  # type: ignore[arg-type]  # a transport in all that is used


class _Gathering:
    """A transport that writes head and body at once: uvicorn writes them apart, and a system call costs about 7 us.

    The second write of a tick takes the first one along; one that stays alone leaves when the tick ends. Waiting for
    the end of the tick with both would send all answers of a batch at the same moment, and so the next requests come.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
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

    def close(self) -> None:
        """Write what is held, then close."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._transport.writelines(held)
