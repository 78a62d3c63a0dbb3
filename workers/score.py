"""The command `score`: a whole topic through a model, exactly once, resumable.

The same engine as `serve`, over a bounded range. Results leave in the order of their sources; each checkpoint is one
Kafka transaction of results and source offsets, so a reader of committed records sees every answer once, however often
the scoring was killed and run again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from schemas.errors import InferenceError
from schemas.topics import Topics
from store import open_store
from workers.delivery import Delivery
from workers.engine import Engine, QueueRoom
from workers.interpreter import tune_interpreter
from workers.loader import Loader
from workers.memory import device_memory
from workers.model_cache import ModelCache
from workers.model_config import QueuePolicy
from workers.ordered_results import OrderedResults, Score, is_large
from workers.publisher import TransactionalPublisher
from workers.range_intake import RangeIntake
from workers.repository import ModelRepository, RepositoryModel
from workers.served import ServedModel, ServedModels
from workers.settings import ScoreSettings
from workers.topics import TopicAdmin

_ROOM = QueueRoom(max_requests=4096, max_bytes=64 * 1024 * 1024)


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
            repository = ModelRepository(
                open_store(settings.repository), cache=settings.cache, cache_bytes=settings.cache_bytes
            )
            model = await asyncio.to_thread(repository.read, settings.model)
            version = model.metadata.resolve(settings.version)
            served = _scored(model, version)
            # First the publisher: it fences a former run and waits for its last transaction to end. Progress that was
            # read before could miss that transaction, and its rows would be written twice.
            publisher = TransactionalPublisher(kafka=settings.kafka_connection(), transactional_id=self._group)
            resources.push_async_callback(publisher.close)
            await publisher.open()
            intake = _SourceRange(kafka=settings.kafka_connection(), group=self._group, topic=settings.from_topic)
            resources.push_async_callback(intake.close)
            self._on_open(await intake.open())
            results = intake.results = await self._results(len(intake.partitions))
            memory = device_memory(ram_bytes=settings.model_memory_bytes, gpu_ratio=settings.gpu_memory_ratio)
            models = ModelCache(Loader(repository, memory), budgets=memory.budgets)
            resources.push_async_callback(models.close)
            async with asyncio.TaskGroup() as work:
                engine = Engine(
                    served=ServedModels({settings.from_topic: served}),
                    models=models,
                    intake=intake,
                    recorder=results,
                    tasks=work,
                    room=_ROOM,
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
            kafka=settings.kafka_connection(),
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


def _scored(model: RepositoryModel, version: str) -> ServedModel:
    """One version, without what is for callers who wait: no record is too old here, and none is urgent."""
    config = msgspec.structs.replace(
        model.config, priority_levels=0, default_queue_policy=QueuePolicy(), queue_policies={}
    )
    metadata = msgspec.structs.replace(model.metadata, versions=(version,))
    return ServedModel(config, metadata, labels=model.labels, is_timed=False)


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
