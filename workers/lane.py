"""Lane: the way of one model version through this worker, from queued requests to recorded outcomes.

Joins the pure Batcher with the model's instances: cuts when the batcher says so, keeps one batch prepared in front of
each running one, never two. The model is pinned in memory while the lane has work, and asked for when it is not there.
What fails in passing runs again, and an instance that hangs is replaced. Lives on the event loop; large batches are
assembled in a thread. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from schemas.errors import InferenceError
from workers.answers import Answers
from workers.assembly import Assembly
from workers.batch import Arrays
from workers.batch_layout import BatchLayout
from workers.batch_policy import batch_policy
from workers.batch_run import Batch, Finished
from workers.batcher import Batcher, Entry
from workers.cancellations import Cancellations
from workers.delivery import Intake
from workers.instance import MAX_IN_FLIGHT, Instance
from workers.metrics import QUEUED_ROWS
from workers.model_cache import ModelCache
from workers.model_config import ModelConfig
from workers.model_use import ModelUse
from workers.request_entry import entry_of, read_clocks
from workers.reruns import Reruns
from workers.resident import ModelKey
from workers.under_way import UnderWay
from workers.work import Work


def now_us() -> int:
    """The monotonic clock in microseconds, which all times in a lane are of."""
    return time.monotonic_ns() // 1000


class Lane:
    """One model version. `on_change` is called whenever its queue has become shorter."""

    def __init__(
        self,
        key: ModelKey,
        config: ModelConfig,
        *,
        models: ModelCache,
        answers: Answers,
        intake: Intake,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], None],
        on_failing: Callable[[], bool],
    ) -> None:
        """`on_failing` is asked when the model does not load: true if something else is tried, so nobody is failed."""
        self.key = key
        self._config = config
        self._intake = intake
        self._on_change = on_change
        self._on_failing = on_failing
        self._failure: InferenceError | None = None  # why the model did not load, while something else is tried
        self._use = ModelUse(key, config, models=models, tasks=tasks, on_change=self.pump)
        self._answers = answers
        self._layout = BatchLayout(config)
        self._assembly = Assembly(self._layout, tasks=tasks, on_finished=self._finish, on_abandoned=self._run_elsewhere)
        self._batcher: Batcher[Work] = Batcher(batch_policy(config))
        self._reruns = Reruns(key.ref, answers, offer=self._offer_again)
        self._under_way = UnderWay(key.ref.name, answers)
        self._timer: asyncio.TimerHandle | None = None
        self._on_retired: Callable[[], object] | None = None
        self._queued_bytes = 0
        self._flushing = False
        self._closed = False
        self._settled = asyncio.Event()  # set whenever a batch has ended
        self._queued_rows = QUEUED_ROWS.labels(key.ref.name, key.ref.version)

    @property
    def queued_requests(self) -> int:
        """Requests that wait for a batch, or for another run."""
        return self._batcher.requests + self._reruns.requests

    @property
    def queued_bytes(self) -> int:
        """What those hold in memory."""
        return self._queued_bytes + self._reruns.size_bytes

    @property
    def running(self) -> int:
        """Batches submitted and not finished, those being assembled included."""
        return sum([instance.in_flight for instance in self._use.instances])

    def offer(self, work: Work, rows: int, received_us: int, *, is_timed: bool = True) -> None:
        """Queue a request; `pump` comes after the last one of a fetch. `is_timed`: see ServedModel."""
        work.arrived_us = work.delivery.partition.clock.arrival_us(work.delivery.appended_ms, received_us)
        if is_timed and work.request.parameters:
            read_clocks(work, work.arrived_us, received_us)
        self._enqueue(entry_of(work, rows, self._layout.signature(work.request), received_us))

    def cancel(self, cancelled: Cancellations) -> None:
        """Answer whoever of those who are here is cancelled: none of them runs, or what its run brings is dropped.

        What waits of a partition that is given up is left to its next owner.
        """
        for entry in self._batcher.queued():
            work = entry.payload
            is_meant = cancelled.has(work.delivery.origin) and not work.delivery.partition.lost
            if is_meant and self._batcher.remove(entry):
                self._queued_bytes -= work.size_bytes
                self._answers.fail(work, cancelled.error(work.delivery.origin), stage="queue")
        self._reruns.end_cancelled(cancelled)
        self._under_way.end_cancelled(cancelled)
        self.pump()

    def pump(self) -> None:
        """Answer what is refused and send every batch that may leave now."""
        if self._closed:
            return
        at_us = now_us()
        self._under_way.end_overdue(at_us)
        if self._config.execution_timeout_ms:
            self._abandon_overdue(at_us)
        self._refuse(at_us)
        has_work = bool(self._batcher.rows or self._reruns.batches)
        if has_work and self._use.claim(at_us):
            while self._send_one(at_us):
                pass
            self._refuse(at_us)
        elif (error := self._use.take_failure()) is not None:
            self._fail_waiting(error)
        self._rest_if_idle(at_us)
        self._arm(at_us)
        self._queued_rows.set(self._batcher.rows)
        self._on_change()

    async def drain(self) -> None:
        """Run what is queued now, without waiting for its delay, and wait until nothing runs. Cancel-safe.

        A model that is still loading is not waited for, nor what rests before another run: those requests stay
        unacknowledged, for a later owner.
        """
        self._flushing = True
        self._use.stop_loading()
        self.pump()
        while self._use.instances and (self.running or self._reruns.batches or self._batcher.rows):
            self._settled.clear()
            await self._settled.wait()

    def retire(self, on_retired: Callable[[], object]) -> None:
        """Finish what is queued, or hand it out again if the model is not there; then unload, and call `on_retired`."""
        self._on_retired = on_retired
        if not self._use.instances:
            for entry in self._batcher.take_all():
                self._queued_bytes -= entry.payload.size_bytes
                self._intake.release(entry.payload.delivery)
        self.pump()

    def close(self) -> None:
        """Begin nothing any more and answer nothing: the instances are about to go."""
        self._closed = True
        self._use.stop_loading()
        if self._timer is not None:
            self._timer.cancel()

    def _enqueue(self, entry: Entry[Work]) -> None:
        refusal = self._batcher.add(entry)
        if refusal is not None:
            self._answers.refuse(entry.payload, refusal)
        else:
            self._queued_bytes += entry.payload.size_bytes

    def _refuse(self, at_us: int) -> None:
        if not self._batcher.is_timed:
            return
        instance = self._next_instance()
        if instance is None:
            refused = self._batcher.take_refused(at_us, instance_free=False)
        else:
            refused = self._batcher.take_refused(
                at_us,
                instance_free=instance.in_flight == 0,
                durations=instance.durations,
                free_us=instance.free_us(at_us),
            )
        for entry, refusal in refused:
            self._queued_bytes -= entry.payload.size_bytes
            self._answers.refuse(entry.payload, refusal)

    def _abandon_overdue(self, at_us: int) -> None:
        for instance in list(self._use.instances):
            overdue_us = instance.overdue_us()
            if overdue_us is not None and overdue_us <= at_us:
                abandoned = instance.abandon()
                for batch in (abandoned.running, *(batch for batch, _ in abandoned.waiting)):
                    if batch is not None:
                        self._under_way.leave(batch)
                self._reruns.take_abandoned(abandoned, timeout_ms=self._config.execution_timeout_ms)
                self._use.replace(instance)
                self._settled.set()

    def _rest_if_idle(self, at_us: int) -> None:
        """Unpin the model while nothing is to be done with it, or when others wait for its memory."""
        if self.running:
            return
        has_work = bool(self._batcher.rows or self._reruns.batches)
        if self._use.is_wanted_back:
            self._use.rest()
            if has_work:
                self._use.claim(at_us)  # behind those who wait
        elif not has_work:
            self._use.rest()
            if self._on_retired is not None and not self._reruns.requests:
                on_retired, self._on_retired = self._on_retired, None
                self._use.drop()
                on_retired()

    def _next_instance(self) -> Instance | None:
        instances = self._use.instances
        if len(instances) <= 1:
            return instances[0] if instances else None
        return min(instances, key=_in_flight)

    def _send_one(self, at_us: int) -> bool:
        instance = self._next_instance()
        if instance is None or instance.in_flight >= MAX_IN_FLIGHT:
            return False
        if self._reruns.batches:
            batch, arrays = self._reruns.batches.popleft()
            self._start(instance, batch, arrays)
            return True
        entries = self._batcher.cut(
            at_us,
            instance_free=instance.in_flight == 0,
            flush=self._flushing,
            durations=instance.durations,
            limit_rows=instance.ceiling.rows(at_us),
        )
        if entries is None:
            return False
        self._queued_bytes -= sum([entry.payload.size_bytes for entry in entries])
        entries = [entry for entry in entries if not self._is_lost(entry.payload)]
        if entries:
            batch = Batch(
                [entry.payload for entry in entries],
                [entry.rows for entry in entries],
                [entry.arrived_us for entry in entries],
                at_us,
                load_begun_us=self._use.load_begun_us,
                ready_us=self._use.ready_us,
            )
            self._start(instance, batch, None)
        return True

    def _is_lost(self, work: Work) -> bool:
        """Whether its partition is given up: then its next owner runs it."""
        if work.delivery.partition.lost and work.delivery.running:  # it ran before and was to run again
            self._intake.release(work.delivery)
        return work.delivery.partition.lost

    def _start(self, instance: Instance, batch: Batch, arrays: Arrays | None) -> None:
        started_ms = time.time_ns() // 1_000_000
        for work in batch.works:
            if not work.is_over:
                work.started_ms = started_ms
                self._intake.start(work.delivery)
        self._answers.expect(batch)
        self._under_way.begin(batch)
        instance.in_flight += 1
        self._assembly.submit(instance, batch, arrays)

    def _run_elsewhere(self, batch: Batch, arrays: Arrays) -> None:
        self._under_way.leave(batch)
        self._reruns.batches.append((batch, arrays))
        self.pump()

    def _finish(self, instance: Instance, finished: Finished) -> None:
        instance.in_flight -= 1
        self._under_way.leave(finished.batch)
        if self._closed:
            return
        self.pump()  # first the next batch, then the answers of this one
        parts = finished.parts
        if len(parts) > 1 or parts[0].is_transient:
            passing = [part for part in parts if part.is_transient]
            for part in passing if not self._flushing else ():  # interrupted is not failed: its next owner runs it
                self._reruns.take(finished.batch, part, finished.ended_us - finished.begun_us)
            parts = [part for part in parts if part not in passing]
        self._answers.finish(finished, parts)
        self._settled.set()

    def _offer_again(self, work: Work, rows: int) -> None:
        if not self._closed and not work.is_over and not self._is_lost(work):
            self._enqueue(entry_of(work, rows, self._layout.signature(work.request), now_us()))
        self.pump()

    def fail_waiting(self) -> None:
        """Nothing else could be done about a model that does not load: answer those who wait for it."""
        if self._failure is not None:
            self._fail_waiting(self._failure)

    def _fail_waiting(self, error: InferenceError) -> None:
        """The model cannot be loaded now: answer those who cannot wait for the next try."""
        if self._use.is_failing and self._on_failing():
            self._failure = error
            return
        next_try_us = self._use.next_try_us or 0
        for entry in self._batcher.take_all():
            self._queued_bytes -= entry.payload.size_bytes
            begin_by_us = entry.begin_by_us
            if self._use.is_failing if begin_by_us is None else begin_by_us <= next_try_us:
                self._answers.fail(entry.payload, error, stage="load")
            else:
                self._enqueue(replace(entry, gone=False))

    def _arm(self, at_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        instance = self._next_instance()
        is_free = instance is not None and instance.in_flight == 0 and not self._use.is_wanted_back
        due_us = self._batcher.next_due(
            instance_free=is_free,
            durations=instance.durations if instance is not None else None,
            limit_rows=instance.ceiling.rows(at_us) if instance is not None else None,
        )
        if instance is None and self._batcher.rows and self._use.next_try_us is not None:
            due_us = min(due_us or self._use.next_try_us, self._use.next_try_us)
        if (overdue_us := self._next_overdue_us(at_us)) is not None:
            due_us = min(due_us or overdue_us, overdue_us)
        if due_us is not None:
            delay_s = max(0, due_us - at_us) / 1e6
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.pump)

    def _next_overdue_us(self, at_us: int) -> int | None:
        """When something that runs now will have run for too long."""
        overdue_us = self._under_way.next_due_us(at_us)
        if timeout_us := 1000 * self._config.execution_timeout_ms:
            for instance in self._use.instances:
                if instance.in_flight:
                    due_us = instance.overdue_us() or at_us + timeout_us
                    overdue_us = min(overdue_us or due_us, due_us)
        return overdue_us


def _in_flight(instance: Instance) -> int:
    return instance.in_flight
