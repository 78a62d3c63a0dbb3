"""GrpcTrail: what a gRPC call leaves behind: a count, a line in the access log, a span. Knows no call of the protocol.

A line has the fields of HTTP's: `status` is the HTTP status of the same meaning, `grpc_status` gRPC's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.trace import Span

from gateway.access_log import AccessLog
from gateway.grpc_status import STATUS
from gateway.grpc_visit import Visit
from gateway.tracing import Tracing
from schemas.errors import ErrorCode
from schemas.tracing import traceparent_of


class GrpcTrail:
    """One gateway's. `tracing` is None where no spans are made."""

    def __init__(self, *, count: Callable[[int, float], None], access_log: AccessLog, tracing: Tracing | None) -> None:
        """`count` is told of each answered inference: the HTTP status of the same meaning, and how long it took."""
        self._count = count
        self._log = access_log
        self._tracing = tracing

    def begin(self, path: str, visit: Visit) -> Span | None:
        """Begin the server span of a call, if there are spans: whatever it leads to is the span's child."""
        if self._tracing is None:
            return None
        told = visit.traceparent if b"traceparent" in visit.sent else ""
        span = self._tracing.serve_call(path, visit.origin, visit.sent, told)
        visit.traceparent = traceparent_of(span)
        return span

    def end(
        self,
        path: str,
        visit: Visit,
        span: Span | None,
        code: ErrorCode | None,
        *,
        is_inference: bool,
        bytes_in: int,
        bytes_out: int = 0,
    ) -> None:
        """The call has ended, with this error or with an answer."""
        status, seconds = 200 if code is None else code.http_status, time.perf_counter() - visit.begun_s
        if is_inference:
            self._count(status, seconds)
        if self._tracing is not None and span is not None:
            number: int = 0 if code is None else STATUS[code].value[0]
            self._tracing.end_call(span, number, request_id=visit.request_id, model=visit.model)
        if self._log.wants(status):
            self._log.write(
                method="gRPC",
                path=path,
                model=visit.model,
                status=status,
                grpc_status="OK" if code is None else code.grpc_status,
                duration_ms=round(1000 * seconds, 3),
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                request_id=visit.request_id,
                trace_id=visit.traceparent[3:35],
                caller=visit.caller.name,
                tenant=visit.caller.tenant,
            )
