"""Tracing: the set-up of OpenTelemetry that gateway and workers share, and the trace context that records carry.

Off unless the environment names where spans go, as OpenTelemetry's own variables do. Then its SDK is needed (the extra
`telemetry`); else only its interface is imported, and that by nobody on a hot path. Knows no span of ours.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

_FLUSH_S = 5.0  # what is still to be sent when the process ends; a collector that is away holds nobody up
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_is_on = False


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").lower()
    return exporter in ("otlp", "console") or (exporter != "none" and any(map(environment.get, _ENDPOINTS)))


def is_on() -> bool:
    """Whether `set_up` has been called and not been stopped."""
    return _is_on


def set_up(service: str, version: str) -> Callable[[], None]:
    """Send spans where the environment says, from now on; returns what ends that, within 5 s.

    OTEL_SERVICE_NAME goes before `service`. Raises ImportError without the SDK.
    """
    global _is_on  # as OpenTelemetry's own provider is one for the process
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    exporter: SpanExporter
    if os.environ.get("OTEL_TRACES_EXPORTER", "").lower() == "console":
        exporter = ConsoleSpanExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    named = os.environ.get("OTEL_SERVICE_NAME") or service
    resource = Resource.create({"service.version": version, "service.name": named})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    _is_on = True

    def stop() -> None:
        global _is_on
        _is_on = False
        flushing = threading.Thread(target=provider.shutdown, name="flush spans", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_S)

    return stop


def is_sampled(traceparent: str) -> bool:
    """Whether the trace that a well-formed traceparent belongs to is recorded."""
    return traceparent[-1:] in "13579bdf" and len(traceparent) == 55


def span_context(traceparent: str) -> SpanContext | None:
    """The span that a traceparent names; None for what is none."""
    try:
        _, trace_id, span_id, flags = traceparent.split("-")
        context = SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)))
    except ValueError:
        return None
    return context if context.is_valid else None


def parent_context(traceparent: str) -> Context:
    """A context whose current span is the one that a traceparent names; an empty one for what names none."""
    context = span_context(traceparent)
    return Context() if context is None else trace.set_span_in_context(NonRecordingSpan(context), Context())


def traceparent_of(span: Span) -> str:
    """The traceparent that makes others children of this span."""
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
