"""WorkerTracing: the worker's spans: one per request, its parts as children, and one per batch that its members share.

They are made when the outcome is there, of times that were measured anyway, and only for requests whose trace is
recorded. Knows no Kafka client and nothing of batching but what a finished batch tells.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, set_span_in_context

from schemas.errors import InferenceError
from schemas.model import ModelRef
from schemas.record import Envelope
from schemas.tracing import is_on, is_sampled, is_wanted, parent_context, set_up
from workers.batch_run import Batch, Finished
from workers.bisection import Part
from workers.delivery import Delivery

log = structlog.get_logger()

_MAX_ATTRIBUTE_CHARS = 256
_MAX_TOLD = 10_000


@contextlib.contextmanager
def spans() -> Iterator[None]:
    """Send spans meanwhile, if the environment asks for them; what is left is sent at the end, within 5 s."""
    if not is_wanted():
        yield
        return
    try:
        stop = set_up("tidegate-worker", _version())
    except ImportError as error:
        log.warning("no_spans", error=repr(error), remedy="install the extra telemetry")
        yield
        return
    try:
        yield
    finally:
        stop()


@cache
def worker_tracing() -> WorkerTracing | None:
    """The process's own; None where there is no tracing: whoever holds None pays nothing. Ask after the set-up."""
    return WorkerTracing(trace.get_tracer("tidegate.workers")) if is_on() else None


class WorkerTracing:
    """Makes spans. Lives on the event loop."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._told: set[str] = set()  # requests whose failure is told with their batch

    def ran(self, ref: ModelRef, finished: Finished, parts: Sequence[Part]) -> None:
        """These parts of a batch have ended, and are about to be answered."""
        batch = finished.batch
        clock_ns = time.time_ns() - time.monotonic_ns()  # from the monotonic clock to Unix time
        run: Span | None = None
        for part in parts:
            for index in range(part.first, part.first + part.count):
                if not is_sampled(batch.works[index].envelope.traceparent):
                    continue
                links = [] if run is None else [Link(run.get_span_context())]
                span = self._begin_request(ref, batch, index, clock_ns, links)
                if run is None:  # the first one's trace holds the run, the others' lead there
                    run = self._begin_run(ref, finished, clock_ns, set_span_in_context(span, Context()))
                self._add_parts(set_span_in_context(span, Context()), finished, index, clock_ns)
                if part.error is not None:
                    _mark(span, part.error)
                    if len(self._told) < _MAX_TOLD:
                        self._told.add(str(batch.works[index].delivery.origin))
                span.end()
        if run is not None:
            run.end(1000 * finished.ended_us + clock_ns)

    def failed(self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str) -> None:
        """A request has failed. Nothing is added for one whose batch has just been told of."""
        origin = str(delivery.origin)
        if origin in self._told:
            self._told.discard(origin)
            return
        if not is_sampled(envelope.traceparent):
            return
        attributes = {**_messaging(delivery, envelope), "tidegate.stage": stage}
        appended_ns = min(time.time_ns(), 1_000_000 * delivery.appended_ms)
        span = self._tracer.start_span(
            f"process {delivery.origin.topic}",
            parent_context(envelope.traceparent),
            SpanKind.CONSUMER,
            attributes,
            start_time=appended_ns,
        )
        _mark(span, error)
        span.end()

    def _begin_request(self, ref: ModelRef, batch: Batch, index: int, clock_ns: int, links: list[Link]) -> Span:
        work = batch.works[index]
        attributes: dict[str, Any] = {
            **_messaging(work.delivery, work.envelope),
            "tidegate.model": ref.name,
            "tidegate.model.version": ref.version,
            "tidegate.rows": batch.rows[index],
            "messaging.batch.message_count": len(batch.works),
        }
        return self._tracer.start_span(
            f"process {work.delivery.origin.topic}",
            parent_context(work.envelope.traceparent),
            SpanKind.CONSUMER,
            attributes,
            links,
            start_time=1000 * batch.arrived_us[index] + clock_ns,
        )

    def _begin_run(self, ref: ModelRef, finished: Finished, clock_ns: int, parent: Context) -> Span:
        attributes: dict[str, Any] = {
            "tidegate.model": ref.name,
            "tidegate.model.version": ref.version,
            "tidegate.batch.rows": finished.batch.total_rows,
            "tidegate.batch.requests": len(finished.batch.works),
            "tidegate.batch.runs": finished.runs,
        }
        begun_ns = 1000 * finished.begun_us + clock_ns
        return self._tracer.start_span(f"run {ref.name}", parent, SpanKind.INTERNAL, attributes, start_time=begun_ns)

    def _add_parts(self, parent: Context, finished: Finished, index: int, clock_ns: int) -> None:
        batch = finished.batch
        arrived_us = batch.arrived_us[index]
        load = (max(arrived_us, batch.load_begun_us), min(batch.cut_us, batch.ready_us))
        for name, begin_us, end_us in (
            ("queue", arrived_us, batch.cut_us),
            ("load", *load),
            ("assemble", batch.cut_us, batch.assembled_us),
            ("infer", finished.begun_us, finished.ended_us),
        ):
            if end_us > begin_us:
                child = self._tracer.start_span(name, parent, start_time=1000 * begin_us + clock_ns)
                child.end(1000 * end_us + clock_ns)


def _messaging(delivery: Delivery, envelope: Envelope) -> dict[str, Any]:
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": delivery.origin.topic,
        "messaging.destination.partition.id": str(delivery.origin.partition),
        "messaging.kafka.offset": delivery.origin.offset,
        "messaging.message.id": envelope.id[:_MAX_ATTRIBUTE_CHARS],
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "tidegate.attempt": envelope.attempt,
    }


def _mark(span: Span, error: InferenceError) -> None:
    span.set_attribute("error.type", error.code.wire)
    span.set_status(StatusCode.ERROR, error.message[:_MAX_ATTRIBUTE_CHARS])


def _version() -> str:
    try:
        return version("tidegate")
    except PackageNotFoundError:  # run from a source tree
        return "0"
