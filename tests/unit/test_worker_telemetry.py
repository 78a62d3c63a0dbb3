"""The worker's spans of batches and failures, made without a worker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from schemas.record import Envelope, Origin
from workers.batch_run import Batch, Finished
from workers.bisection import Part
from workers.telemetry import WorkerTracing, worker_tracing

REF = ModelRef("m", "1")
BROKEN = InferenceError(ErrorCode.MODEL_FAILED, "it broke")


class FakeDelivery:
    """As much of a delivery as spans tell of."""

    def __init__(self, offset: int) -> None:
        self.origin = Origin("t.infer.m", 0, offset)
        self.appended_ms = time.time_ns() // 1_000_000


class FakeWork:
    def __init__(self, number: int, flags: str) -> None:
        self.delivery = FakeDelivery(number)
        self.envelope = Envelope(f"id-{number}", traceparent=f"00-{number + 1:032x}-{number + 1:016x}-{flags}")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> WorkerTracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return WorkerTracing(provider.get_tracer("test"))


def finished(*flags: str, load_us: int = 0) -> Finished:
    now_us = time.monotonic_ns() // 1000
    works: Any = [FakeWork(number, each) for number, each in enumerate(flags)]
    count = len(works)
    begin_us, ready_us = (now_us - 6500, now_us - 6500 + load_us) if load_us else (0, 0)
    batch = Batch(works, [1] * count, [now_us - 7000] * count, now_us - 5000, now_us - 4000, begin_us, ready_us)
    return Finished(batch, [], now_us - 3000, now_us - 1000, 1)


def passed(count: int, first: int = 0) -> Part:
    outputs: Any = object()
    return Part(first, count, outputs, None)


def named(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    trace_id: int = span.context.trace_id
    return trace_id


def test_unrecorded_members_are_left_out_and_the_run_is_in_a_recorded_one(
    tracing: WorkerTracing, exporter: InMemorySpanExporter
) -> None:
    done = finished("00", "01", "00", "01")
    tracing.ran(REF, done, [passed(4)])
    spans = exporter.get_finished_spans()
    first, second = sorted(named(spans, "process t.infer.m"), key=trace_of)
    assert [trace_of(first), trace_of(second)] == [2, 4]
    (run,) = named(spans, "run m")
    assert run.parent is not None
    assert first.context is not None
    assert run.parent.span_id == first.context.span_id
    assert first.links == ()
    assert [link.context for link in second.links] == [run.context]
    assert run.attributes is not None
    assert (run.attributes["tidegate.batch.requests"], run.attributes["tidegate.batch.rows"]) == (4, 4)
    assert {span.name for span in spans} == {"process t.infer.m", "run m", "queue", "assemble", "infer"}


def test_parts_are_as_long_as_they_were(tracing: WorkerTracing, exporter: InMemorySpanExporter) -> None:
    tracing.ran(REF, finished("01", load_us=1000), [passed(1)])
    lengths_us = {
        span.name: ((span.end_time or 0) - (span.start_time or 0)) // 1000 for span in exporter.get_finished_spans()
    }
    assert {name: lengths_us[name] for name in ("queue", "load", "assemble", "infer", "run m")} == {
        "queue": 2000,
        "load": 1000,
        "assemble": 1000,
        "infer": 2000,
        "run m": 2000,
    }
    assert 7000 <= lengths_us["process t.infer.m"] < 1_000_000


def test_nothing_is_made_of_a_batch_that_nobody_records(tracing: WorkerTracing, exporter: InMemorySpanExporter) -> None:
    tracing.ran(REF, finished("00", "00"), [passed(2)])
    assert exporter.get_finished_spans() == ()


def test_a_failure_is_told_once_whether_with_its_batch_or_alone(
    tracing: WorkerTracing, exporter: InMemorySpanExporter
) -> None:
    done = finished("01", "01")
    tracing.ran(REF, done, [passed(1), Part(1, 1, None, BROKEN)])
    work: Any = done.batch.works[1]
    tracing.failed(work.delivery, work.envelope, BROKEN, stage="infer")
    processed = sorted(named(exporter.get_finished_spans(), "process t.infer.m"), key=trace_of)
    assert [span.status.is_ok for span in processed] == [True, False]
    other: Any = FakeWork(5, "01")
    late = InferenceError(ErrorCode.DEADLINE_EXCEEDED, "too late")
    tracing.failed(other.delivery, other.envelope, late, stage="queue")
    (alone,) = [each for each in named(exporter.get_finished_spans(), "process t.infer.m") if trace_of(each) == 6]
    assert alone.attributes is not None
    assert (alone.attributes["error.type"], alone.attributes["tidegate.stage"]) == ("deadline_exceeded", "queue")
    unrecorded: Any = FakeWork(6, "00")
    tracing.failed(unrecorded.delivery, unrecorded.envelope, late, stage="queue")
    assert not [each for each in exporter.get_finished_spans() if trace_of(each) == 7]


def test_without_a_set_up_there_is_nobody_to_pay() -> None:
    assert worker_tracing() is None
