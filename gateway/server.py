"""Server: the HTTP server under the application, as the gateway wants it. Knows no route."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Self

import msgspec
import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.byte_budget import ByteBudget
from gateway.connection import Connection, ConnectionConfig, ConnectionLimits
from schemas.errors import invalid

_log = structlog.get_logger(__name__)


class Listener(msgspec.Struct, frozen=True):
    """Where to listen. With `certificate` and `key`, PEM files, it speaks TLS. Port 0: any free one.

    `event` is what the log says once it listens.
    """

    host: str
    port: int
    certificate: str = ""
    key: str = ""
    event: str = "listen"


class Server(uvicorn.Server):
    """uvicorn's server in a task of ours: without its signal handlers, the service has its own."""

    config: ConnectionConfig

    @classmethod
    def of(cls, app: ASGIApp, listener: Listener, *, limits: ConnectionLimits, budget: ByteBudget) -> Self:
        """A server of this application that listens once `serve` runs, until `should_exit` is set.

        Raises InferenceError when the certificate cannot be used.
        """
        config = ConnectionConfig(
            app,
            host=listener.host,
            port=listener.port,
            loop="none",  # ours runs already
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.keep_alive_s,  # type: ignore[arg-type]  # it is only ever given to call_later
            timeout_graceful_shutdown=2,
            ssl_certfile=listener.certificate or None,
            ssl_keyfile=listener.key or None,
        )
        config.limits, config.budget, config.event = limits, budget, listener.event
        try:
            config.load()
        except OSError as cause:  # an ssl.SSLError is one
            raise invalid(
                f"the TLS certificate cannot be used: {cause}",
                field="tls_certificate",
                value=listener.certificate,
                remedy="name PEM files of a certificate, with its chain, and of its key",
            ) from cause
        return cls(config)

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
            for listening in server.sockets:
                host, port, *_ = listening.getsockname()
                _log.info(self.config.event, host=host, port=port)
