"""Instance: one loaded copy of a model and the one thread that runs it.

The thread takes batches one after the other; a second one may wait in front of it, prepared, and no more. It tells of
a batch when the next one is about to run: so the event loop takes the interpreter while the device works, and not
between two batches. A batch that fails is halved until the failing requests stand alone: their neighbours are answered
as if nothing had been. Knows no Kafka and does not decide what is batched.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ErrorCode, InferenceError
from workers.backend import Backend
from workers.batch import Arrays, Outputs, rows_of
from workers.model_config import ModelConfig
from workers.placement import Placement
from workers.work import Work

MAX_IN_FLIGHT = 2  # one running, one prepared
_CPU = Placement()


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that run together. `rows` are per request; times are microseconds of the monotonic clock."""

    works: Sequence[Work]
    rows: Sequence[int]
    arrived_us: Sequence[int]
    cut_us: int
    assembled_us: int = 0

    @property
    def total_rows(self) -> int:
        """Rows of all requests together."""
        return sum(self.rows)


@dataclass(slots=True, eq=False)
class Part:
    """A run of a batch's requests that ended the same way: all with outputs, or one with its error."""

    first: int
    count: int
    outputs: Outputs | None
    error: InferenceError | None


@dataclass(slots=True, eq=False)
class Finished:
    """A batch that has run. `runs` counts calls of the backend: 1, more after a failure."""

    batch: Batch
    parts: list[Part]
    begun_us: int
    ended_us: int
    runs: int


News = Callable[[], object]  # what the loop is to be told


class Instance:
    """A backend with its thread. `in_flight` counts batches submitted and not finished; it is the event loop's."""

    def __init__(self, backend: Backend, config: ModelConfig, *, name: str, placement: Placement = _CPU) -> None:
        self._backend = backend
        self._config = config
        self._name = name
        self._placement = placement
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], News] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._runs = 0
        self.in_flight = 0

    async def load(self, path: Path) -> None:
        """Start the thread, load and warm up in it. Raises InferenceError(MODEL_LOAD_FAILED)."""
        # A daemon: one that is stuck in a model must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()
        await self._do(lambda: self._load(path))

    async def close(self) -> None:
        """Unload after what was submitted has run, and end the thread. Idempotent."""
        if self._thread is not None:
            self._thread = None
            await self._do(self._backend.unload)
            self._jobs.put(None)

    def submit(self, batch: Batch, arrays: Arrays, on_finished: Callable[[Finished], None]) -> None:
        """Run a batch after those before it; `on_finished` is called on the event loop."""
        self._jobs.put(lambda: self._run(batch, arrays, on_finished))

    async def _do(self, work: Callable[[], None]) -> None:
        """Have something done in the thread, and wait for it."""
        done: asyncio.Future[None] = self._loop.create_future()

        def job() -> News:
            error: Exception | None = None
            try:
                work()
            except Exception as caught:  # it is raised where it is awaited
                error = caught
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
                    return
                news = job()

    def _load(self, path: Path) -> None:
        try:
            self._backend.load(path, self._config, self._placement)
            self._backend.warm_up()
        except InferenceError:
            raise
        except Exception as cause:
            raise InferenceError(
                ErrorCode.MODEL_LOAD_FAILED, f"model {self._config.name!r} failed to load: {cause!r}"
            ) from cause

    def _run(self, batch: Batch, arrays: Arrays, on_finished: Callable[[Finished], None]) -> News:
        begun_us = time.monotonic_ns() // 1000
        self._runs = 0
        parts = self._bisect(batch, arrays, 0, len(batch.works))
        finished = Finished(batch, parts, begun_us, time.monotonic_ns() // 1000, self._runs)
        return lambda: self._loop.call_soon_threadsafe(on_finished, finished)

    def _bisect(self, batch: Batch, arrays: Arrays, first: int, count: int) -> list[Part]:
        self._runs += 1
        works = batch.works[first : first + count]
        try:
            return [Part(first, count, self._infer(works, batch.rows[first : first + count], arrays), None)]
        except Exception as cause:  # whatever a model raises must not reach its neighbours
            if count == 1:
                return [Part(first, 1, None, _as_inference_error(self._config.name, cause))]
        half = count // 2
        middle_row = sum(batch.rows[first : first + half])
        end_row = middle_row + sum(batch.rows[first + half : first + count])
        left = self._bisect(batch, rows_of(arrays, 0, middle_row), first, half)
        right = self._bisect(batch, rows_of(arrays, middle_row, end_row), first + half, count - half)
        return left + right

    def _infer(self, works: Sequence[Work], rows: Sequence[int], arrays: Arrays) -> Outputs:
        names = [spec.name for spec in self._config.outputs]
        wants = [work.wanted for work in works]
        if None not in wants:
            union = frozenset().union(*(want for want in wants if want is not None))
            names = [name for name in names if name in union]
        outputs = self._backend.infer(arrays, tuple(names))
        return Outputs(outputs, self._config.outputs, sum(rows), batched=self._config.max_batch_size > 0)


def _as_inference_error(model: str, cause: Exception) -> InferenceError:
    if isinstance(cause, InferenceError):
        return cause
    error = InferenceError(ErrorCode.MODEL_FAILED, f"model {model!r} failed: {cause!r}")
    error.__cause__ = cause
    return error


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # nobody waits any more
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
