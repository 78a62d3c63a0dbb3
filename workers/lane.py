"""Lane: the way of one model version through this worker, from queued requests to recorded outcomes.

Joins the pure Batcher with the model's instances: cuts when the batcher says so, keeps one batch prepared in front of
each running one, never two. Lives on the event loop; large batches are assembled in a thread. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from schemas.response import InferenceResponse
from workers.batch import Arrays, assemble, signature_of
from workers.batcher import Batcher, BatchPolicy, Entry
from workers.delivery import Intake
from workers.instance import MAX_IN_FLIGHT, Batch, Finished, Instance, Part
from workers.metrics import BATCH_ROWS, EXTRA_RUNS, INFER_SECONDS, QUEUE_SECONDS, QUEUED_ROWS
from workers.model_cache import ModelCache
from workers.model_config import ModelConfig
from workers.work import Recorder, Work

_ASSEMBLE_INLINE_BYTES = 256 * 1024  # about 20 us of copying; beyond it a thread does it


def now_us() -> int:
    """The monotonic clock in microseconds, which all times in a lane are of."""
    return time.monotonic_ns() // 1000


class Lane:
    """One model version. `on_change` is called whenever its queue has become shorter."""

    def __init__(
        self,
        ref: ModelRef,
        *,
        models: ModelCache,
        recorder: Recorder,
        intake: Intake,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], None],
    ) -> None:
        self.ref = ref
        self._tasks = tasks
        self._models = models
        self._recorder = recorder
        self._intake = intake
        self._on_change = on_change
        self._config = models.config(ref.name)
        self._batched = self._config.max_batch_size > 0
        self._batcher: Batcher[Work] = Batcher(batch_policy(self._config))
        self._instances: list[Instance] = []
        self._load: asyncio.Task[None] | None = None
        self._load_begun_us = self._ready_us = 0
        self._timer: asyncio.TimerHandle | None = None
        self.queued_bytes = 0
        self._flushing = False
        self._closed = False
        self._settled = asyncio.Event()  # set whenever a batch has ended
        labels = (ref.name, ref.version)
        self._batch_rows = BATCH_ROWS.labels(*labels)
        self._queue_seconds = QUEUE_SECONDS.labels(*labels)
        self._infer_seconds = INFER_SECONDS.labels(*labels)
        self._extra_runs = EXTRA_RUNS.labels(*labels)
        self._queued_rows = QUEUED_ROWS.labels(*labels)

    @property
    def queued_requests(self) -> int:
        """Requests that wait for a batch."""
        return self._batcher.requests

    @property
    def running(self) -> int:
        """Batches submitted and not finished, those being assembled included."""
        return sum(instance.in_flight for instance in self._instances)

    def offer(self, work: Work, rows: int, received_us: int) -> None:
        """Queue a request; `pump` comes after the last one of a fetch."""
        partition = work.delivery.partition
        self.queued_bytes += work.size_bytes
        deadline = work.envelope.deadline
        deadline_us = None
        if deadline is not None:
            deadline_us = received_us + 1000 * deadline.at_ms - time.time_ns() // 1000
        self._batcher.add(
            Entry(
                work,
                rows,
                signature_of(work.request, batched=self._batched),
                partition.clock.arrival_us(work.delivery.appended_ms, received_us),
                deadline_us,
                work.envelope.priority,
            )
        )

    def pump(self) -> None:
        """Answer what has expired and send every batch that may leave now."""
        if self._closed:
            return
        at_us = now_us()
        expired = self._batcher.take_expired(at_us)
        self._forget_bytes(expired)
        for entry in expired:
            self._expire(entry.payload)
        if not self._instances:
            if self._batcher.rows and self._load is None and not self._flushing:
                self._load = self._tasks.create_task(self._load_model(), name=f"lane {self.ref}")
        else:
            while self._send_one(at_us):
                pass
        self._arm(at_us)
        self._queued_rows.set(self._batcher.rows)
        self._on_change()

    async def drain(self) -> None:
        """Run what is queued now, without waiting for its delay, and wait until nothing runs. Cancel-safe.

        A model that is still loading is not waited for: its requests stay unacknowledged, for a later owner.
        """
        self._flushing = True
        if self._load is not None:
            self._load.cancel()
        self.pump()
        while self._instances and (self.running or self._batcher.rows):
            self._settled.clear()
            await self._settled.wait()

    def close(self) -> None:
        """Begin nothing any more and answer nothing: the instances are about to go."""
        self._closed = True
        if self._load is not None:
            self._load.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _send_one(self, at_us: int) -> bool:
        instance = min(self._instances, key=_in_flight)
        if instance.in_flight >= MAX_IN_FLIGHT:
            return False
        entries = self._batcher.cut(at_us, instance_free=instance.in_flight == 0, flush=self._flushing)
        if entries is None:
            return False
        self._forget_bytes(entries)
        entries = [entry for entry in entries if not entry.payload.delivery.partition.lost]
        if not entries:
            return True
        started_ms = time.time_ns() // 1_000_000
        for entry in entries:
            entry.payload.started_ms = started_ms
            self._intake.start(entry.payload.delivery)
        works = [entry.payload for entry in entries]
        rows = [entry.rows for entry in entries]
        batch = Batch(works, rows, [entry.arrived_us for entry in entries], at_us)
        instance.in_flight += 1
        size_bytes = sum([work.size_bytes for work in works])
        if size_bytes <= _ASSEMBLE_INLINE_BYTES:
            self._submit(instance, batch, assemble([work.request for work in works], batch.total_rows))
        else:
            self._tasks.create_task(self._assemble(instance, batch), name=f"assemble {self.ref}")
        return True

    async def _assemble(self, instance: Instance, batch: Batch) -> None:
        requests = [work.request for work in batch.works]
        self._submit(instance, batch, await asyncio.to_thread(assemble, requests, batch.total_rows))

    def _submit(self, instance: Instance, batch: Batch, arrays: Arrays) -> None:
        batch.assembled_us = now_us()
        instance.submit(batch, arrays, lambda finished: self._finish(instance, finished))

    def _finish(self, instance: Instance, finished: Finished) -> None:
        instance.in_flight -= 1
        if self._closed:
            return
        self.pump()  # first the next batch, then the answers of this one
        for part in finished.parts:
            self._answer(finished, part)
        batch = finished.batch
        self._batch_rows.observe(batch.total_rows)
        self._infer_seconds.observe((finished.ended_us - finished.begun_us) / 1e6)
        self._queue_seconds.observe((batch.cut_us - batch.arrived_us[0]) / 1e6)
        if finished.runs > 1:
            self._extra_runs.inc(finished.runs - 1)
        self._settled.set()

    def _answer(self, finished: Finished, part: Part) -> None:
        batch = finished.batch
        works = batch.works
        if part.outputs is None:
            assert part.error is not None
            work = works[part.first]
            self._recorder.fail(work.delivery, work.envelope, part.error, stage="infer", started_ms=work.started_ms)
            return
        shared = {
            "assemble_us": batch.assembled_us - batch.cut_us,
            "infer_us": finished.ended_us - finished.begun_us,
            "batch_rows": batch.total_rows,
            "batch_requests": len(works),
            "publish_us": now_us() - finished.ended_us,
        }
        answered: list[tuple[Work, InferenceResponse]] = []
        row = 0
        for index in range(part.first, part.first + part.count):
            work, rows, arrived_us = works[index], batch.rows[index], batch.arrived_us[index]
            load_us = max(0, min(batch.cut_us, self._ready_us) - max(arrived_us, self._load_begun_us))
            outputs = part.outputs.rows(row, rows, work.wanted)
            row += rows
            timings = {
                "queue_us": batch.cut_us - arrived_us - load_us,
                "load_us": load_us,
                **shared,
            }
            response = InferenceResponse(self.ref.name, self.ref.version, outputs, work.request.id, timings)
            answered.append((work, response))
        self._recorder.succeed(answered)

    def _expire(self, work: Work) -> None:
        if work.delivery.partition.lost:  # its new owner decides; two outcomes would be one too many
            return
        error = InferenceError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"the deadline passed before model {self.ref.name!r} could run the request",
            remedy="allow more time, or add workers",
        )
        self._recorder.fail(work.delivery, work.envelope, error, stage="queue")

    async def _load_model(self) -> None:
        self._load_begun_us = now_us()
        try:
            self._instances = await self._models.instances(self.ref)
        except InferenceError as error:
            self._load = None
            for entry in self._take_all():
                if entry.payload.delivery.partition.lost:
                    continue
                self._recorder.fail(entry.payload.delivery, entry.payload.envelope, error, stage="load")
            self._on_change()
            return
        self._ready_us = now_us()
        self._load = None
        self.pump()

    def _take_all(self) -> list[Entry[Work]]:
        taken: list[Entry[Work]] = []
        while (entries := self._batcher.cut(now_us(), flush=True)) is not None:
            taken += entries
        self._forget_bytes(taken)
        return taken

    def _forget_bytes(self, entries: list[Entry[Work]]) -> None:
        self.queued_bytes -= sum(entry.payload.size_bytes for entry in entries)

    def _arm(self, at_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_free = any(instance.in_flight == 0 for instance in self._instances)
        due_us = self._batcher.next_due(instance_free=is_free)
        if due_us is not None:
            delay_s = max(0, due_us - at_us) / 1e6
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.pump)


def _in_flight(instance: Instance) -> int:
    return instance.in_flight


def batch_policy(config: ModelConfig) -> BatchPolicy:
    """How the model's requests are batched; without a batch dimension each runs alone."""
    return BatchPolicy(
        max_batch_rows=max(1, config.max_batch_size),
        max_queue_delay_us=config.max_queue_delay_us if config.dynamic_batching else 0,
        preferred_rows=config.preferred_batch_sizes,
        alone=not config.dynamic_batching,
    )
