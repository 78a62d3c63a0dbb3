"""Edge: what every HTTP answer carries and leaves behind: a request id, trace context, a line in the access log, a
span.

`gateway/infer.py` uses its parts one by one, as each microsecond counts there; other routes are wrapped in `around`.
Knows no route.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.trace import Span
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access import Access
from gateway.access_log import AccessLog
from gateway.caller import caller_in
from gateway.request_id import request_id_of
from gateway.traceparent import traceparent_in
from gateway.tracing import Tracing
from schemas.tracing import traceparent_of

_UNTRACED = frozenset({"/metrics", "/v2/health/live", "/v2/health/ready"})  # asked every second, for nobody's sake


class Edge:
    """One gateway's. `tracing` is None where no spans are made; `count` is told of each answered inference request:
    its status and how many seconds it took.
    """

    def __init__(
        self,
        *,
        next_id: Callable[[], str],
        access: Access,
        count: Callable[[int, float], None],
        access_log: AccessLog,
        tracing: Tracing | None,
    ) -> None:
        self._next_id = next_id
        self.access = access
        self.count = count
        self.access_log = access_log
        self.tracing = tracing

    def log(self, scope: Scope, sent: dict[bytes, bytes], *, traceparent: bytes, begun_s: float, **fields: Any) -> None:
        """Write a line of the access log. `fields`: path, model, status, bytes_out, request_id."""
        caller = caller_in(scope)
        length = sent.get(b"content-length")
        self.access_log.write(
            method=scope["method"],
            duration_ms=round(1000 * (time.perf_counter() - begun_s), 3),
            bytes_in=int(length) if length is not None and length.isdigit() else None,
            trace_id=traceparent[3:35].decode(),
            caller=caller.name,
            tenant=caller.tenant,
            **fields,
        )

    def around(self, app: ASGIApp, routes: Iterable[Any]) -> ASGIApp:
        """The application with all of this; `routes` are its own, to tell a path by its pattern.

        The request id is in the scope's state, for problem documents.
        """
        known = tuple(routes)

        async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
            visit = _Visit(scope, send)
            visit.request_id = request_id_of(visit.sent, self._next_id())
            scope.setdefault("state", {})["request_id"] = visit.request_id
            span = None
            if self.tracing is not None and scope["path"] not in _UNTRACED:
                told = visit.traceparent.decode() if b"traceparent" in visit.sent else ""
                span = self.tracing.serve(scope, visit.sent, "", told)
                visit.traceparent = traceparent_of(span).encode()
            try:
                await app(scope, receive, visit.carry)
            finally:
                if span is not None or self.access_log.wants(visit.status):
                    self._leave(visit, span, _pattern(known, scope))

        return wrapped

    def _leave(self, visit: _Visit, span: Span | None, path: str) -> None:
        model = visit.scope.get("path_params", {}).get("model", "")
        if span is not None and self.tracing is not None:
            self.tracing.end(span, visit.status, route=path, request_id=visit.request_id, model=model)
        if self.access_log.wants(visit.status):
            self.log(
                visit.scope,
                visit.sent,
                traceparent=visit.traceparent,
                begun_s=visit.begun_s,
                path=path,
                model=model,
                status=visit.status,
                bytes_out=visit.bytes_out,
                request_id=visit.request_id,
            )


class _Visit:
    """One routed request and its answer, as far as it has been sent. Status 500 until there is another."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.sent: dict[bytes, bytes] = dict(scope["headers"])
        self.begun_s = time.perf_counter()
        self.traceparent = traceparent_in(self.sent)
        self.request_id = ""
        self.status = 500
        self.bytes_out = 0
        self._send = send

    async def carry(self, message: Message) -> None:
        """Send a part of the answer on, its head with our headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = [(b"x-request-id", self.request_id.encode()), (b"traceparent", self.traceparent)]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        elif message["type"] == "http.response.body":
            self.bytes_out += len(message.get("body", b""))
        await self._send(message)


def _pattern(routes: Iterable[Any], scope: Scope) -> str:
    """The pattern of the route that a request went to; empty when there is none: paths that others make up are many."""
    asked = {"type": "http", "method": scope["method"], "path": scope["path"], "root_path": scope.get("root_path", "")}
    return next((route.path for route in routes if route.matches(asked)[0] is not Match.NONE), "")
