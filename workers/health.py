"""Health: /health/live, /health/ready and /metrics over HTTP, in a thread of their own.

A thread, because it must answer while the event loop is busy or stuck: that is what liveness is about.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class HealthServer:
    """Serves until closed. `is_live` and `is_ready` are called from its threads."""

    def __init__(self, *, host: str, port: int, is_live: Callable[[], bool], is_ready: Callable[[], bool]) -> None:
        self._host = host
        self._port = port
        self._checks = {"/health/live": is_live, "/health/ready": is_ready}
        self._metrics = make_wsgi_app()
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def open(self) -> int:
        """Bind and serve; returns the port. Raises OSError if it is taken."""
        self._server = make_server(
            self._host, self._port, self._answer, server_class=_ThreadingServer, handler_class=_QuietHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            body: Iterable[bytes] = self._metrics(environ, start_response)
            return body
        check = self._checks.get(path)
        if check is None:
            status, text = "404 Not Found", b"try /health/live, /health/ready or /metrics\n"
        elif check():
            status, text = "200 OK", b"ok\n"
        else:
            status, text = "503 Service Unavailable", b"no\n"
        start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # the name is the standard library's
        """Probes come every few seconds: no line for each."""
