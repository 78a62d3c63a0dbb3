"""WebhookReceiver: a real HTTP server that takes webhooks, or does not, as a test tells it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import msgspec

PATIENCE_S = 30.0


class Received(msgspec.Struct, frozen=True):
    """A request that came. `headers` have lower-case names."""

    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float


class WebhookReceiver:
    """Enter it to listen. `answer(received)` gives the status, or (status, headers), in a thread: it may block."""

    def __init__(
        self,
        answer: Callable[[Received], Any] = lambda received: 204,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer
        self._tls = tls
        self._news = threading.Condition()
        self._port = port
        self.received: list[Received] = []

    def __enter__(self) -> Self:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._on_post(self)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that was killed

        self._server = Server(("127.0.0.1", self._port), Handler)
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1") -> str:
        """Where to send webhooks."""
        return f"http{'s' * (self._tls is not None)}://{host}:{self._port}{path}"

    async def got(self, count: int = 1, *, path: str | None = None) -> list[Received]:
        """Wait for so many requests, to this path or in all."""
        return await asyncio.to_thread(self._got, count, path)

    def _got(self, count: int, path: str | None) -> list[Received]:
        def found() -> list[Received]:
            return [each for each in self.received if path is None or each.path == path]

        with self._news:
            enough = self._news.wait_for(lambda: len(found()) >= count, PATIENCE_S)
            assert enough, f"{len(found())} requests have come, not {count}: {self.received}"
            return found()

    def _on_post(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(request.path, headers, body, time.monotonic())
        with self._news:
            self.received.append(received)
            self._news.notify_all()
        answer = self.answer(received)
        status, extra = answer if isinstance(answer, tuple) else (answer, {})
        request.send_response(status)
        for name, value in extra.items():
            request.send_header(name, value)
        request.send_header("content-length", "0")
        request.end_headers()


def unused_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
