"""Instance: one loaded copy of a model and the one thread that runs it.

The thread takes batches one after the other; a second one may wait in front of it, prepared, and no more. It tells of
a batch when the next one is about to run: so the event loop takes the interpreter while the device works, and not
between two batches. What fails is bisected (workers/bisection.py). A thread that is stuck in a model cannot be stopped,
only abandoned: what it says later is not heard. Knows no Kafka and does not decide what is batched.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ErrorCode, InferenceError, shown
from workers.backend import Backend
from workers.batch import Arrays, Outputs, rows_of
from workers.batch_layout import BatchLayout
from workers.batch_run import Abandoned, Batch, Finished, too_late
from workers.bisection import Bisection, Part
from workers.ceiling import Ceiling
from workers.duration import DurationModel
from workers.model_config import ModelConfig
from workers.placement import Placement
from workers.warm_up import run_warm_ups

MAX_IN_FLIGHT = 2  # one running, one prepared
_CPU = Placement()
_abandoned: list[threading.Thread] = []  # of this process; a thread leaves the list some time after it has ended


@dataclass(slots=True, eq=False)
class _Submission:
    """A batch on its way. The thread sets `has_begun` and then `finished`, the event loop reads them."""

    batch: Batch
    arrays: Arrays
    on_finished: Callable[[Finished], None]
    has_begun: bool = False
    finished: Finished | None = None
    is_given_up: bool = False  # the event loop's: nobody wants to hear of it any more


News = Callable[[], object]  # what the loop is to be told


class Instance:
    """A backend with its thread; everything but its run is the event loop's.

    `in_flight` counts batches submitted and not finished; it is kept by who submits. `ceiling` limits the rows of
    batches that are yet to be cut; what was cut before is halved where it must be.
    """

    def __init__(self, backend: Backend, config: ModelConfig, *, name: str, placement: Placement = _CPU) -> None:
        self._backend = backend
        self._config = config
        self._layout = BatchLayout(config)
        self._name = name
        self._placement = placement
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], News] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._submitted: deque[_Submission] = deque()
        self._awaited: asyncio.Future[None] | None = None  # the load or unload that somebody waits for
        self._is_closed = False
        self._is_abandoned = False
        self._running_since_us = 0
        self.ceiling = Ceiling(config.max_batch_size)
        self.durations = DurationModel()
        self.in_flight = 0

    @property
    def running_since_us(self) -> int:
        """When the call of the backend began that runs now, by the monotonic clock; 0: none runs."""
        return self._running_since_us

    def overdue_us(self) -> int | None:
        """When what runs now will have run for longer than the model's execution timeout; None: never.

        The time is that of one call of the backend: a batch that is bisected is many.
        """
        since_us = self._running_since_us
        if not since_us or not self._config.execution_timeout_ms:
            return None
        return since_us + 1000 * self._config.execution_timeout_ms

    @property
    def is_abandoned(self) -> bool:
        """Whether it was given up: submit nothing any more."""
        return self._is_abandoned

    def free_us(self, at_us: int) -> int | None:
        """When it will have run what it has, as far as durations are known; None: it has nothing, or nobody knows."""
        if not self._submitted:
            return None
        free_us = self._running_since_us or at_us
        for submission in self._submitted:
            took_us = self.durations.estimate_us(submission.batch.total_rows)
            if took_us is None:
                return None
            free_us += took_us
        return max(at_us, free_us)

    async def load(self, path: Path, warm_up_path: Path | None = None) -> None:
        """Start the thread, load and warm up in it; `warm_up_path` (None: as `path`) holds the data of samples.

        Raises InferenceError(MODEL_LOAD_FAILED).
        """
        # A daemon: one that is stuck in a model must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()
        await self._do(lambda: self._load(path, warm_up_path or path))

    async def close(self) -> None:
        """Unload after what was submitted has run, and end the thread. Idempotent; returns at once when abandoned."""
        if self._thread is None or self._is_closed or self._is_abandoned:
            return
        self._is_closed = True
        try:
            await self._do(self._backend.unload)
        except InferenceError:
            if not self._is_abandoned:  # meanwhile: then nobody waits for it any more
                raise
        self._jobs.put(None)

    def abandon(self) -> Abandoned:
        """Give the thread up, with what it has not finished; never waits.

        Batches whose end is already on its way to the event loop are still told. The thread unloads the model and ends
        if it ever comes back. Whoever waits for `load` gets an InferenceError(MODEL_LOAD_FAILED). Idempotent.
        """
        abandoned = Abandoned(None, [])
        if self._is_abandoned or self._thread is None:
            return abandoned
        self._is_abandoned = True
        _abandoned.append(self._thread)
        for submission in self._submitted:
            if submission.finished is not None:
                continue
            submission.is_given_up = True
            if submission.has_begun:
                abandoned.running = submission.batch
            else:
                abandoned.waiting.append((submission.batch, submission.arrays))
        with suppress(queue.Empty):  # the thread is stuck, and would hold what is handed back
            while True:
                self._jobs.get_nowait()
        self._jobs.put(None)
        if self._awaited is not None:
            _end(self._awaited, InferenceError(ErrorCode.MODEL_LOAD_FAILED, f"instance {self._name} was abandoned"))
        return abandoned

    def submit(self, batch: Batch, arrays: Arrays, on_finished: Callable[[Finished], None]) -> None:
        """Run a batch after those before it; `on_finished` is called on the event loop."""
        submission = _Submission(batch, arrays, on_finished)
        self._submitted.append(submission)
        self._jobs.put(lambda: self._run(submission))

    async def _do(self, work: Callable[[], None]) -> None:
        """Have something done in the thread, and wait for it."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._awaited = done

        def job() -> News:
            error: Exception | None = None
            try:
                work()
            except Exception as caught:  # it is raised where it is awaited
                error = caught
            except BaseException as caught:  # SystemExit: it must end neither this thread nor the event loop
                error = RuntimeError(shown(caught))
            return lambda: self._loop.call_soon_threadsafe(_end, done, error)

        self._jobs.put(job)
        await done

    def _work(self) -> None:
        """The thread, until it is told None or the event loop is gone."""
        news: News | None = None
        with suppress(RuntimeError):  # how a closed loop refuses news: the process is ending
            while True:
                try:
                    job = self._jobs.get(block=news is None)
                except queue.Empty:  # nothing is prepared: tell at once
                    assert news is not None
                    news()
                    news = None
                    continue
                if news is not None:
                    news()
                if job is None:
                    break
                news = job()
        if self._is_abandoned:
            with suppress(Exception):  # it was stuck before, and nobody waits: give back what it can
                self._backend.unload()

    def _load(self, path: Path, warm_up_path: Path) -> None:
        try:
            self._backend.load(path, self._config, self._placement)
            self._backend.warm_up()
            run_warm_ups(self._backend, self._config, warm_up_path)
        except InferenceError:
            raise
        except BaseException as cause:  # SystemExit too
            raise InferenceError(
                ErrorCode.MODEL_LOAD_FAILED, f"model {self._config.name!r} failed to load: {shown(cause)}"
            ) from cause

    def _run(self, submission: _Submission) -> News:
        if self._is_abandoned:
            return _no_news
        submission.has_begun = True
        batch, arrays = submission.batch, submission.arrays
        finished = Finished(batch, [], _now_us(), 0, 0)
        batch.begun_us = finished.begun_us
        now_ms = time.time_ns() // 1_000_000
        first = 0
        for out in (*batch.out(now_ms), len(batch.works)):
            if first < out:
                self._bisect(finished, arrays, first, out - first)
            if out < len(batch.works):
                finished.parts.append(Part(out, 1, None, too_late(self._config.name, batch.works[out], now_ms)))
                finished.out_rows += batch.rows[out]
            first = out + 1
        finished.ended_us = _now_us()
        submission.finished = finished
        return lambda: self._loop.call_soon_threadsafe(self._tell, submission)

    def _bisect(self, finished: Finished, arrays: Arrays, first: int, count: int) -> None:
        """Run these requests of the batch, and add how they ended."""
        bisection = Bisection(
            self._config.name,
            finished.batch.rows[first : first + count],
            lambda begin, size: self._infer(finished.batch, arrays, first + begin, size),
        )
        for part in bisection.parts():
            part.first += first
            finished.parts.append(part)
        finished.runs += bisection.runs
        finished.out_of_memory_rows += bisection.out_of_memory_rows

    def _tell(self, submission: _Submission) -> None:
        if submission.is_given_up:
            return
        assert submission.finished is not None
        self._submitted.remove(submission)
        finished = submission.finished
        for failed_rows in finished.out_of_memory_rows:
            self.ceiling.note_out_of_memory(failed_rows, finished.ended_us)
        if len(finished.parts) == 1 and finished.parts[0].outputs is not None:
            self.durations.observe(finished.batch.total_rows, finished.ended_us - finished.begun_us)
        rows = finished.batch.rows
        for part in finished.parts:
            if part.outputs is not None:
                self.ceiling.note_passed(sum(rows[part.first : part.first + part.count]))
        submission.on_finished(finished)

    def _infer(self, batch: Batch, arrays: Arrays, first: int, count: int) -> Outputs:
        works, rows = batch.works[first : first + count], batch.rows[first : first + count]
        if count < len(batch.works):
            first_row = sum(batch.rows[:first])
            arrays = rows_of(arrays, first_row, first_row + sum(rows))
        names = [spec.name for spec in self._config.outputs]
        wants = [work.wanted for work in works]
        if None not in wants:
            union = frozenset().union(*(want for want in wants if want is not None))
            names = [name for name in names if name in union]
        self._running_since_us = _now_us()
        try:
            outputs = self._backend.infer(arrays, tuple(names))
        finally:
            self._running_since_us = 0
        return self._layout.outputs(outputs, [work.request for work in works], rows)


def stuck_threads() -> int:
    """How many abandoned threads of this process have not come back: each holds a model and perhaps a core."""
    _abandoned[:] = [thread for thread in _abandoned if thread.is_alive()]
    return len(_abandoned)


def _no_news() -> None:
    pass


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # nobody waits any more
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
