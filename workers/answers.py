"""Answers: turns what an instance has finished into each request's outcome; in the order in which batches were cut,
where the model asks for that.

Knows no queue and no instance; whoever is to run again is handed back. Knows no Kafka client.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from schemas.response import InferenceResponse
from workers.batch_run import Batch, Finished
from workers.bisection import Part
from workers.classification import Labels, classified
from workers.metrics import BATCH_ROWS, EXTRA_RUNS, INFER_SECONDS, QUEUE_SECONDS, REFUSED
from workers.refusal import Refusal
from workers.statistics import ModelCounters
from workers.telemetry import worker_tracing
from workers.work import Recorder, Work

_REFUSALS = {
    Refusal.EXPIRED: (
        ErrorCode.DEADLINE_EXCEEDED,
        "the deadline passed before model {model!r} could run the request",
        "allow more time, or add workers",
    ),
    Refusal.HOPELESS: (
        ErrorCode.OVERLOADED,
        "model {model!r} takes longer for a request than is left until its deadline",
        "allow more time",
    ),
    Refusal.OVERLOADED: (
        ErrorCode.OVERLOADED,
        "model {model!r} has more to do than it can before the deadlines",
        "allow more time, send less, or add workers",
    ),
    Refusal.UNSTARTED: (
        ErrorCode.DEADLINE_EXCEEDED,
        "the time to start passed before model {model!r} could run the request",
        "allow more time, or add workers",
    ),
    Refusal.TIMED_OUT: (
        ErrorCode.OVERLOADED,
        "the request waited longer than the queue policy of model {model!r} allows",
        "try again, raise default_timeout_microseconds, or add workers",
    ),
    Refusal.QUEUE_FULL: (
        ErrorCode.OVERLOADED,
        "the queue of model {model!r} holds as many requests as its queue policy allows",
        "try again, raise max_queue_size, or add workers",
    ),
}


class Answers:
    """One model version's. Lives on the event loop."""

    def __init__(
        self,
        ref: ModelRef,
        recorder: Recorder,
        counters: ModelCounters,
        *,
        in_order: bool,
        batched: bool,
        labels: Labels,
    ) -> None:
        """`in_order`: no batch is answered before those that were cut earlier. `batched`: outputs have rows.

        `labels`: of classes, for those who ask for outputs as their highest classes.
        """
        self._ref = ref
        self._counters = counters
        self._batched = batched
        self._labels = labels
        self._recorder = recorder
        self._in_order = in_order
        self._tracing = worker_tracing()
        self._cut: deque[Batch] = deque()
        self._done: dict[int, tuple[Finished, Sequence[Part]]] = {}
        of_model = (ref.name, ref.version)
        self._batch_rows = BATCH_ROWS.labels(*of_model)
        self._queue_seconds = QUEUE_SECONDS.labels(*of_model)
        self._infer_seconds = INFER_SECONDS.labels(*of_model)
        self._extra_runs = EXTRA_RUNS.labels(*of_model)

    def expect(self, batch: Batch) -> None:
        """A batch was cut."""
        if self._in_order and batch not in self._cut:
            self._cut.append(batch)

    def forget(self, batch: Batch) -> None:
        """A batch was given up as such; its requests come again in others."""
        if self._in_order and batch in self._cut:
            self._cut.remove(batch)
            self._release()

    def finish(self, finished: Finished, parts: Sequence[Part]) -> None:
        """Answer these parts of a batch that has run. What it leaves out is to run again, and no answer yet."""
        batch = finished.batch
        infer_us = finished.ended_us - finished.begun_us
        if finished.runs:
            self._counters.note_batch(
                batch.total_rows - finished.out_rows,
                batch.assembled_us - batch.cut_us,
                infer_us,
                time.time_ns() // 1_000_000,
            )
        self._batch_rows.observe(batch.total_rows)
        self._infer_seconds.observe(infer_us / 1e6)
        self._queue_seconds.observe((batch.cut_us - batch.arrived_us[0]) / 1e6)
        if finished.runs > 1:
            self._extra_runs.inc(finished.runs - 1)
        if not self._in_order:
            self._answer_all(finished, parts)
            return
        self._done[id(batch)] = (finished, parts)
        self._release()

    def refuse(self, work: Work, refusal: Refusal, *, stage: str = "queue") -> None:
        """A request is not run."""
        if work.delivery.partition.lost:  # its new owner decides; two outcomes would be one too many
            return
        code, message, remedy = _REFUSALS[refusal]
        REFUSED.labels(self._ref.name, self._ref.version, refusal.value).inc()
        error = InferenceError(code, message.format(model=self._ref.name), remedy=remedy)
        self._fail(work, error, stage, 0)

    def fail(self, work: Work, error: InferenceError, *, stage: str) -> None:
        """A request has failed; nothing happens if it has its outcome already."""
        if work.is_over or (work.delivery.partition.lost and stage != "infer"):
            return
        is_run = error.code is not ErrorCode.DEADLINE_EXCEEDED  # such a one never ran
        self._fail(work, error, stage, work.started_ms if is_run else 0)

    def end(self, work: Work, error: InferenceError) -> None:
        """A request that is under way has its outcome now; whatever its run still brings is thrown away."""
        self.fail(work, error, stage="infer")
        work.is_over = True

    def _fail(self, work: Work, error: InferenceError, stage: str, started_ms: int) -> None:
        self._counters.note_failure(_now_us() - work.arrived_us)
        self._recorder.fail(work.delivery, work.envelope, error, stage=stage, started_ms=started_ms)

    def _release(self) -> None:
        while self._cut and (done := self._done.pop(id(self._cut[0]), None)) is not None:
            self._cut.popleft()
            self._answer_all(*done)

    def _answer_all(self, finished: Finished, parts: Sequence[Part]) -> None:
        if self._tracing is not None:
            self._tracing.ran(self._ref, finished, parts)
        for part in parts:
            self._answer(finished, part)

    def _answer(self, finished: Finished, part: Part) -> None:
        batch = finished.batch
        works = batch.works
        if part.outputs is None:
            assert part.error is not None
            for work in works[part.first : part.first + part.count]:
                self.fail(work, part.error, stage="infer")
            return
        assemble_us = batch.assembled_us - batch.cut_us
        infer_us = finished.ended_us - finished.begun_us
        shared = {
            "assemble_us": assemble_us,
            "infer_us": infer_us,
            "batch_rows": batch.total_rows,
            "batch_requests": len(works),
            "publish_us": _now_us() - finished.ended_us,
        }
        answered: list[tuple[Work, InferenceResponse]] = []
        arrivals_us: list[int] = []
        row = 0
        for index in range(part.first, part.first + part.count):
            work, rows, arrived_us = works[index], batch.rows[index], batch.arrived_us[index]
            if work.is_over:
                row += rows
                continue
            load_us = max(0, min(batch.cut_us, batch.ready_us) - max(arrived_us, batch.load_begun_us))
            outputs = part.outputs.rows(row, rows, work.wanted)
            if work.request.outputs:
                outputs = classified(outputs, work.request, self._labels, batched=self._batched)
            row += rows
            timings = {
                "queue_us": batch.cut_us - arrived_us - load_us,
                "load_us": load_us,
                **shared,
            }
            response = InferenceResponse(self._ref.name, self._ref.version, outputs, work.request.id, timings)
            answered.append((work, response))
            arrivals_us.append(arrived_us)
        if not answered:
            return
        self._recorder.succeed(answered)
        now_us = _now_us()
        parts_us = (assemble_us, infer_us, now_us - finished.ended_us)
        rows = batch.total_rows - finished.out_rows
        self._counters.note_answers(rows, arrivals_us, batch.cut_us, now_us, parts_us)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
