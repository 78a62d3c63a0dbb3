"""Tracing: the gateway's spans: a server span per request, the sending of its record, the receipt of its answer.

Made only where OpenTelemetry is set up (schemas/tracing.py). Knows no route and no Kafka client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from starlette.types import Scope

from gateway.outbox import Handed
from schemas.outcome import Outcome
from schemas.tracing import is_on, parent_context, traceparent_of

# gRPC's UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS: so OpenTelemetry's conventions.
_SERVER_FAULTS = frozenset({2, 4, 12, 13, 14, 15})
_MAX_ATTRIBUTE_CHARS = 256  # what others wrote goes on in full nowhere


class Tracing:
    """The spans of one gateway."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @classmethod
    def if_on(cls) -> Self | None:
        """None where there is no tracing: whoever holds None pays nothing."""
        return cls(trace.get_tracer("tidegate.gateway")) if is_on() else None

    def serve(self, scope: Scope, sent: dict[bytes, bytes], route: str, traceparent: str) -> Span:
        """Begin the server span of an HTTP request, as a child of the caller's. `route` may be told at the end."""
        attributes: dict[str, Any] = {
            "http.request.method": scope["method"],
            "url.path": scope["path"][:_MAX_ATTRIBUTE_CHARS],
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", "1.1"),
        }
        if client := scope.get("client"):
            attributes["client.address"] = client[0]
        if agent := sent.get(b"user-agent"):
            attributes["user_agent.original"] = agent[:_MAX_ATTRIBUTE_CHARS].decode("latin-1")
        if route:
            attributes["http.route"] = route
        name = f"{scope['method']} {route}" if route else scope["method"]
        return self._tracer.start_span(name, parent_context(traceparent), SpanKind.SERVER, attributes)

    def end(self, span: Span, status: int, *, route: str = "", request_id: str = "", model: str = "") -> None:
        """End a server span with the status that was answered."""
        if span.is_recording():
            if route:
                span.update_name(f"{span.attributes['http.request.method']} {route}")  # type: ignore[attr-defined]  # a recording span has them
                span.set_attribute("http.route", route)
            for name, value in (("tidegate.request.id", request_id), ("tidegate.model", model)):
                if value:
                    span.set_attribute(name, value[:_MAX_ATTRIBUTE_CHARS])
            span.set_attribute("http.response.status_code", status)
            if status >= 500:  # a refused caller is no error of the server's
                span.set_attribute("error.type", str(status))
                span.set_status(StatusCode.ERROR)
        span.end()

    def serve_call(self, path: str, peer: str, sent: dict[bytes, bytes], traceparent: str) -> Span:
        """Begin the server span of a gRPC call, as a child of the caller's. `path`: `/service/method`."""
        _, service, method = path.split("/", 2)
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "client.address": peer}
        if agent := sent.get(b"user-agent"):
            attributes["user_agent.original"] = agent[:_MAX_ATTRIBUTE_CHARS].decode("latin-1")
        return self._tracer.start_span(path[1:], parent_context(traceparent), SpanKind.SERVER, attributes)

    def end_call(self, span: Span, status: int, *, request_id: str, model: str) -> None:
        """End a gRPC call's span with the number of its status."""
        for name, value in (("tidegate.request.id", request_id), ("tidegate.model", model)):
            if value:
                span.set_attribute(name, value[:_MAX_ATTRIBUTE_CHARS])
        span.set_attribute("rpc.grpc.status_code", status)
        if status in _SERVER_FAULTS:
            span.set_status(StatusCode.ERROR)
        span.end()

    def sending(
        self, topic: str, traceparent: str, on_end: Callable[[Handed], None]
    ) -> tuple[str, Callable[[Handed], None]]:
        """Begin the span of a record that is handed to Kafka: (the traceparent for the record, what ends the span).

        It ends when the broker has acknowledged the record, or it has failed.
        """
        attributes = {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "messaging.operation.type": "send",
            "messaging.operation.name": "send",
        }
        span = self._tracer.start_span(f"send {topic}", parent_context(traceparent), SpanKind.PRODUCER, attributes)

        def ended(handed: Handed) -> None:
            if handed.error is not None:
                span.set_status(StatusCode.ERROR, repr(handed.error)[:_MAX_ATTRIBUTE_CHARS])
            elif span.is_recording():
                partition, offset, _ = handed.place()
                span.set_attribute("messaging.destination.partition.id", str(partition))
                span.set_attribute("messaging.kafka.offset", offset)
            span.end()
            on_end(handed)

        return traceparent_of(span), ended

    def received(self, topic: str, traceparent: str, outcome: Outcome) -> None:
        """Note that an answer has come: from when the worker had it to now, by both clocks."""
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            f"receive {topic}",
            parent_context(traceparent),
            SpanKind.CONSUMER,
            {
                "messaging.system": "kafka",
                "messaging.destination.name": topic,
                "messaging.operation.type": "receive",
                "messaging.operation.name": "receive",
                "messaging.message.id": outcome.id[:_MAX_ATTRIBUTE_CHARS],
                "tidegate.state": outcome.state.value,
            },
            start_time=min(now_ns, outcome.finished_ms * 1_000_000),
        )
        span.end(now_ns)
