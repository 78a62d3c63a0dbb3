"""OtlpCollector: takes spans over OTLP/HTTP as a collector does, and keeps them for tests to look at."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_PATIENCE_S = 30.0


class Seen(NamedTuple):
    """A span. Ids are hexadecimal, times are Unix times in nanoseconds."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    begun_ns: int
    ended_ns: int
    is_error: bool


class OtlpCollector:
    """Enter it to listen on a free port of this machine; `environment` leads processes to it."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.spans: list[Seen] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """Send spans here, and soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def wait_for(self, holds: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Wait until the spans that have come are so; all of them."""
        deadline_s = time.monotonic() + _PATIENCE_S
        with self._news:
            while not holds(self.spans):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._news.wait(left_s):
                    shown = "\n".join(f"{each.service} {each.name} {each.trace}" for each in self.spans)
                    raise AssertionError(f"these spans have come:\n{shown}")
            return list(self.spans)

    def trace(self, trace_id: str, *names: str) -> dict[str, Seen]:
        """Wait until a trace has spans of these names (up to the first space) at least; its spans by such names."""

        def of_trace(spans: list[Seen]) -> dict[str, Seen]:
            return {span.name.partition(" ")[0]: span for span in spans if span.trace == trace_id}

        return of_trace(self.wait_for(lambda spans: set(names) <= of_trace(spans).keys()))

    def _take(self, request: ExportTraceServiceRequest) -> None:
        found = []
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                found += [_seen(service, span) for span in scope.spans]
        with self._news:
            self.spans += found
            self._news.notify_all()


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service,
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        _attributes(span.attributes),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
