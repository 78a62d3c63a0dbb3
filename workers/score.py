"""The command `score`: a whole topic through a model, exactly once, resumable.

The same engine as `serve`, over a bounded range. Results leave in the order of their sources; each checkpoint is one
Kafka transaction of results and source offsets, so a reader of committed records sees every answer once, however often
the scoring was killed and run again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from schemas.errors import InferenceError
from schemas.outcome import JobState, Outcome, error_value, outcome_headers, state_of
from schemas.record import Envelope
from schemas.response import InferenceResponse
from schemas.topics import Topics
from schemas.v2 import encode_response
from store import ObjectStore, open_store
from workers.delivery import Delivery, Partition
from workers.engine import Engine
from workers.intake import RangeIntake
from workers.interpreter import tune_interpreter
from workers.model_cache import ModelCache
from workers.publisher import Publication, TransactionalPublisher
from workers.repository import ModelRepository
from workers.settings import ScoreSettings
from workers.topics import TopicAdmin
from workers.work import Work

_MAX_WAITING_BYTES = 64 * 1024 * 1024  # results waiting for a checkpoint, beyond which reading pauses
_MAX_QUEUED_REQUESTS = 4096
_MAX_QUEUED_BYTES = 64 * 1024 * 1024
_CLAIM_ABOVE_BYTES = 512 * 1024


@dataclass(slots=True)
class Score:
    """What a run did. A row is a request of the source topic; `duration_s` includes loading the model."""

    rows: int = 0
    failed: int = 0
    batches: float = 0.0
    checkpoints: int = 0
    duration_s: float = 0.0
    interrupted: bool = False

    @property
    def rows_per_s(self) -> float:
        """Rate over the whole run."""
        return self.rows / self.duration_s if self.duration_s else 0.0

    @property
    def mean_batch(self) -> float:
        """Requests per batch."""
        return (self.rows - self.failed) / self.batches if self.batches else 0.0


class OrderedResults:
    """Holds outcomes until everything before them in their partition is done too. A Recorder (see workers/work.py)."""

    def __init__(self, topic: str, *, partitions: int, source: bytes, store: ObjectStore) -> None:
        self._topic = topic
        self._partition_count = partitions
        self._source = source
        self._store = store
        self._waiting: dict[Partition, deque[Delivery]] = {}
        self._results: dict[Delivery, Publication] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._waiting_bytes = 0
        self._missing = 0
        self._complete = asyncio.Event()
        self._complete.set()
        self.score = Score()

    def expect(self, delivery: Delivery) -> None:
        """Note the order of the source."""
        self._missing += 1
        self._complete.clear()
        self._waiting.setdefault(delivery.partition, deque()).append(delivery)

    async def has_room(self) -> None:
        """Wait while too many results wait for a checkpoint. Cancel-safe."""
        await self._room.wait()

    async def is_complete(self) -> None:
        """Wait until everything expected has its outcome. Cancel-safe."""
        await self._complete.wait()

    def succeed(self, answered: Sequence[tuple[Work, InferenceResponse]]) -> None:
        """The requests were run, together."""
        for work, response in answered:
            value, header_length = encode_response(response)
            self.score.batches += 1 / response.parameters["batch_requests"]
            self._add(work.delivery, work.envelope, JobState.SUCCEEDED, value, header_length, work.started_ms)

    def fail(
        self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str, started_ms: int = 0
    ) -> None:
        """The request failed: its row says why."""
        self.score.failed += 1
        self._add(delivery, envelope, state_of(error), error_value(error), None, started_ms)

    async def fetch_claim(self, key: str) -> bytes:
        """The value of a record that was too large for one. Raises ObjectNotFound, StoreError."""
        return await asyncio.to_thread(self._store.get, key)

    async def flush(self) -> None:
        """Nothing waits here that a checkpoint does not take."""

    async def claim(self, publication: Publication) -> Publication:
        """Put a value that is too large for a record into the object store; the record then refers to it."""
        origin = dict(publication.headers)["tidegate-origin"].decode()
        key = f"claims/{self._topic}/{origin}"
        await asyncio.to_thread(self._store.put, key, publication.value or b"")
        headers = [*publication.headers, ("tidegate-claim", key.encode())]
        return Publication(publication.topic, publication.partition, b"", headers, _nobody_waits)

    def take(self) -> list[tuple[Delivery, Publication]]:
        """Everything whose predecessors are done, in the order of the source."""
        taken: list[tuple[Delivery, Publication]] = []
        for waiting in self._waiting.values():
            while waiting and waiting[0] in self._results:
                delivery = waiting.popleft()
                taken.append((delivery, self._results.pop(delivery)))
        self.score.rows += len(taken)
        self._waiting_bytes -= sum(len(publication.value or b"") for _, publication in taken)
        if self._waiting_bytes < _MAX_WAITING_BYTES:
            self._room.set()
        return taken

    def _add(
        self,
        delivery: Delivery,
        envelope: Envelope,
        state: JobState,
        value: bytes,
        header_length: int | None,
        started_ms: int,
    ) -> None:
        outcome = Outcome(
            envelope.id,
            state,
            delivery.origin,
            value,
            header_length,
            delivery.appended_ms,
            started_ms,
            time.time_ns() // 1_000_000,
            envelope.traceparent,
        )
        number = delivery.partition.number % self._partition_count
        headers = outcome_headers(outcome, self._source)
        self._results[delivery] = Publication(self._topic, number, value, headers, _nobody_waits)
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        self._waiting_bytes += len(value)
        if self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._room.clear()


class _SourceRange(RangeIntake):
    """The range, with its order told to the results."""

    results: OrderedResults

    async def fetch(self) -> list[Delivery]:
        await self.results.has_room()
        deliveries = await super().fetch()
        for delivery in deliveries:
            self.results.expect(delivery)
        return deliveries


class Scoring:
    """One run of `score`. `stop` may be called from a signal handler: what is done by then is checkpointed."""

    def __init__(
        self, settings: ScoreSettings, *, on_open: Callable[[int], None], on_rows: Callable[[int], None]
    ) -> None:
        """`on_open` is told how many offsets the range spans, `on_rows` how many rows a checkpoint held."""
        self._settings = settings
        self._group = settings.group or (
            f"{Topics(settings.prefix).prefix}.score.{settings.model}.{settings.from_topic}.{settings.to_topic}"
        )
        self._on_open = on_open
        self._on_rows = on_rows
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Finish with the next checkpoint. Idempotent."""
        self._stopping.set()

    async def run(self) -> Score:
        """Score the range. Raises InferenceError when Kafka or the model cannot be had; run again to go on."""
        settings = self._settings
        begun_s = time.monotonic()
        async with AsyncExitStack() as resources:
            repository = ModelRepository(open_store(settings.repository), cache=settings.cache)
            model = await asyncio.to_thread(repository.read, settings.model)
            intake = _SourceRange(bootstrap=settings.kafka_bootstrap, group=self._group, topic=settings.from_topic)
            resources.push_async_callback(intake.close)
            self._on_open(await intake.open())
            publisher = TransactionalPublisher(bootstrap=settings.kafka_bootstrap, transactional_id=self._group)
            resources.push_async_callback(publisher.close)
            await publisher.open()
            results = intake.results = await self._results(len(intake.partitions))
            models = ModelCache(repository, {settings.model: model.config})
            resources.push_async_callback(models.close)
            async with asyncio.TaskGroup() as work:
                engine = Engine(
                    metadata_by_topic={settings.from_topic: model.metadata},
                    models=models,
                    intake=intake,
                    recorder=results,
                    tasks=work,
                    max_queued_requests=_MAX_QUEUED_REQUESTS,
                    max_queued_bytes=_MAX_QUEUED_BYTES,
                )
                reading = work.create_task(engine.run(), name="read range")
                results.score.interrupted = not await self._checkpoint_until_done(reading, intake, results, publisher)
                reading.cancel()
                engine.close()
        results.score.duration_s = time.monotonic() - begun_s
        return results.score

    async def _results(self, source_partitions: int) -> OrderedResults:
        settings = self._settings
        admin = TopicAdmin(
            bootstrap=settings.kafka_bootstrap,
            topics=Topics(settings.prefix),
            partitions=settings.partitions,
            replication_factor=settings.replication_factor,
        )
        partitions = await asyncio.to_thread(admin.ensure, settings.to_topic, partitions=source_partitions)
        return OrderedResults(
            settings.to_topic,
            partitions=partitions,
            source=f"/tidegate/score/{settings.model}".encode(),
            store=open_store(settings.store),
        )

    async def _checkpoint_until_done(
        self,
        reading: asyncio.Task[None],
        intake: _SourceRange,
        results: OrderedResults,
        publisher: TransactionalPublisher,
    ) -> bool:
        """Checkpoint on a timer. True at the end of the range, False when stopped before."""

        async def finish() -> None:
            await reading
            await results.is_complete()

        finishing = asyncio.create_task(finish(), name="finish range")
        stopping = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            while True:
                await asyncio.wait(
                    {finishing, stopping}, timeout=self._settings.checkpoint_s, return_when=asyncio.FIRST_COMPLETED
                )
                done, stopped = finishing.done(), stopping.done()  # before: what ends during a checkpoint needs another
                if done:
                    finishing.result()
                    await intake.pass_gaps()
                await self._checkpoint(intake, results, publisher)
                if done or stopped:
                    return done
        finally:
            finishing.cancel()
            stopping.cancel()

    async def _checkpoint(
        self, intake: _SourceRange, results: OrderedResults, publisher: TransactionalPublisher
    ) -> None:
        taken = results.take()
        for delivery, _ in taken:
            intake.acknowledge(delivery)
        offsets = {(partition.topic, partition.number): partition.tracker.progress() for partition in intake.partitions}
        publications = [
            await results.claim(publication) if is_large(publication) else publication for _, publication in taken
        ]
        await publisher.commit(publications, offsets, group=self._group)
        results.score.checkpoints += 1
        self._on_rows(len(taken))


def is_large(publication: Publication) -> bool:
    """Whether a value does not belong into a record."""
    return len(publication.value or b"") > _CLAIM_ABOVE_BYTES


def _nobody_waits() -> None:
    pass


def score(settings: ScoreSettings) -> int:
    """Run the command; returns the process's exit code: 0 done, 1 failed, 130 interrupted (run again to go on)."""
    return uvloop.run(_score(settings))


async def _score(settings: ScoreSettings) -> int:
    tune_interpreter()
    console = Console(stderr=True)
    shown = settings.progress and console.is_terminal
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not shown,
    ) as bar:
        task = bar.add_task(f"scoring {settings.from_topic}", total=None)
        scoring = Scoring(
            settings,
            on_open=lambda span: bar.update(task, total=span),
            on_rows=lambda rows: bar.update(task, advance=rows),
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, scoring.stop)
        done = None
        try:
            done = await scoring.run()
        except* InferenceError as errors:
            console.print(*errors.exceptions)
            console.print("scoring stopped; run the command again to go on where the last checkpoint stands")
    if done is None:
        return 1
    print(  # the summary is the command's output
        f"scored {done.rows:,} rows in {done.duration_s:.1f} s ({done.rows_per_s:,.0f} rows/s), "
        f"mean batch {done.mean_batch:.1f}, {done.failed} failed, {done.checkpoints} checkpoints"
    )
    if done.interrupted:
        console.print("interrupted: run the command again to go on where the last checkpoint stands")
        return 130
    return 0
