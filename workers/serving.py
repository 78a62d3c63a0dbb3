"""Serving: the parts of a worker that serve, put together. Opens and closes nothing: that is the worker's.

What belongs together when models come and change is here, too. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from schemas.errors import InferenceError
from store import open_store
from workers.cancellations import Cancellations
from workers.control_desk import ControlDesk
from workers.devices import describe_gpu
from workers.engine import Engine, QueueRoom
from workers.group_intake import GroupIntake
from workers.load_news import LoadNews
from workers.loader import Loader
from workers.memory import DeviceMemory, device_memory
from workers.model_cache import ModelCache
from workers.pool import Pool
from workers.publisher import Publisher
from workers.recorder import OutcomeRecorder
from workers.reporter import Reporter
from workers.repository_watch import RepositoryWatch, served_model
from workers.resident import ModelKey
from workers.served import ServedModels
from workers.settings import ServeSettings
from workers.statistics import Statistics
from workers.topics import RequestTopic
from workers.wishes import Wishes

log = structlog.get_logger()


class Serving:
    """The parts, by their names. Lives on the event loop."""

    def __init__(
        self,
        settings: ServeSettings,
        pool: Pool,
        publisher: Publisher,
        tasks: asyncio.TaskGroup,
        *,
        clock_seed_us: int | None,
        join: Callable[[], Awaitable[None]],
    ) -> None:
        """`tasks` is the lifetime of work. `join`: consume from now on, if that has not begun."""
        self._settings = settings
        self._join = join
        self.pool = pool
        self.publisher = publisher
        self.statistics = Statistics()
        self.cancelled = Cancellations()
        self.news = LoadNews(publisher, control_topic=pool.topics.control)
        memory = device_memory(ram_bytes=settings.model_memory_bytes, gpu_ratio=settings.gpu_memory_ratio)
        self.models = ModelCache(Loader(pool.repository, memory), budgets=memory.budgets, on_state=self._note_state)
        self.reporter = self._new_reporter(memory)
        self.served = ServedModels(
            {pool.request_topics[name].name: served_model(pool.models[name]) for name in pool.models}
        )
        self.intake = GroupIntake(
            kafka=settings.kafka_connection(),
            group=pool.topics.group(pool.name),
            topics=[topic.name for topic in pool.request_topics.values()],
            clock_seed_us=clock_seed_us,
        )
        self.recorder = self._new_recorder(tasks)
        for name, topic in pool.request_topics.items():
            self._know(name, topic)
        self.engine = self._new_engine(tasks)
        self.watch = self._new_watch()
        self.engine.fall_back = self.watch.fall_back
        self.wishes = Wishes(served=self.served, models=self.models, tasks=tasks, now_ms=_now_ms)
        self.desk = self._new_desk()

    async def preload(self) -> None:
        """Load what is to be there before the worker is ready. One that fails is left to its first record."""
        wanted, known = self._settings.preload, self.pool.models
        names = list(known) if "*" in wanted else [name for name in wanted if name in known]
        for name in set(wanted) - set(names) - {"*"}:
            log.error("preload_unknown_model", model=name)
        for name in names:
            model = self.served.of_topic(self.pool.request_topics[name].name)
            try:
                resident = await self.models.acquire(model.key(model.metadata.versions[-1]), model.config)
            except InferenceError as error:
                log.error("preload_failed", model=name, error=error.message)
            else:
                resident.unpin()

    async def commit_on_timer(self) -> None:
        """Commit finished work until cancelled."""
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            await self.intake.commit()

    async def clear_up(self) -> None:
        """After the last commit: remove the cancellations that nobody needs any more."""
        self.desk.sweep()
        await self.publisher.flush()

    def _new_recorder(self, tasks: asyncio.TaskGroup) -> OutcomeRecorder:
        return OutcomeRecorder(
            intake=self.intake,
            publisher=self.publisher,
            store=open_store(self._settings.store),
            topics=self.pool.topics,
            pool=self.pool.name,
            tasks=tasks,
            claim_above_bytes=self._settings.claim_above_bytes,
        )

    def _new_reporter(self, memory: DeviceMemory) -> Reporter:
        return Reporter(
            self.publisher,
            control_topic=self.pool.topics.control,
            pool=self.pool.name,
            statistics=self.statistics,
            devices=_devices(memory),
            held_bytes=self.models.held_bytes,
        )

    def _new_engine(self, tasks: asyncio.TaskGroup) -> Engine:
        return Engine(
            served=self.served,
            models=self.models,
            intake=self.intake,
            recorder=self.recorder,
            tasks=tasks,
            room=QueueRoom(self._settings.max_queued_requests, self._settings.max_queued_bytes),
            cancelled=self.cancelled,
            statistics=self.statistics,
        )

    def _new_watch(self) -> RepositoryWatch:
        return RepositoryWatch(
            self.pool,
            served=self.served,
            models=self.models,
            on_new=self._serve_new,
            on_changed=self._serve_changed,
            on_gone=self._serve_gone,
            every_s=self._settings.repository_poll_s,
        )

    def _new_desk(self) -> ControlDesk:
        desk = ControlDesk(
            self.publisher,
            kafka=self._settings.kafka_connection(),
            control_topic=self.pool.topics.control,
            cancelled=self.cancelled,
            wishes=self.wishes,
        )
        desk.on_cancelled = self.engine.cancel
        desk.committed = self.intake.committed
        return desk

    def _know(self, name: str, topic: RequestTopic) -> None:
        self.recorder.add_topic(name, topic)
        self.cancelled.know(topic.name, topic.epoch)

    async def _serve_new(self, name: str) -> None:
        """A model has come into the repository, and its topics are there."""
        self._know(name, self.pool.request_topics[name])
        await self.intake.subscribe([each.name for each in self.pool.request_topics.values()])
        await self._join()
        await self.pool.announce_one(self.publisher, name)
        self.wishes.look_at(name)

    async def _serve_changed(self, name: str) -> None:
        """A model is served in a new state."""
        self.engine.retire(name)
        await self.pool.announce_one(self.publisher, name)

    async def _serve_gone(self, name: str) -> None:
        """A model has left the repository: requests that are on their way are run while it is in memory, or fail."""
        await self.pool.withdraw(self.publisher, name)
        for key in self.models.loaded(name):
            self.models.drop_when_idle(key)

    def _note_state(self, key: ModelKey, state: str, fetched_ratio: float, reason: str) -> None:
        self.news.note(key, state, fetched_ratio)
        self.reporter.note_model(key, state, reason)


def _devices(memory: DeviceMemory) -> tuple[str, ...]:
    """What models may be loaded on, as people know it."""
    return ("cpu", *(f"gpu{gpu} {describe_gpu(gpu).name}" for gpu in memory.gpus))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
