"""Worker: one process of a pool. The file to read first: how it starts, serves and drains.

STARTING -> SERVING -> DRAINING -> STOPPED. Two lifetimes: fetching ends when `stop` is called, work ends when it is
drained or the drain's deadline is spent. Interrupted is not failed: what is not finished stays unacknowledged, is run
by the next owner, and counts no attempt.
"""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import structlog

from schemas.errors import ErrorCode, InferenceError
from store import open_store
from workers.engine import Engine
from workers.group_intake import GroupIntake
from workers.health import HealthServer
from workers.instance import stuck_threads
from workers.lane import now_us
from workers.load_news import LoadNews
from workers.loader import Loader
from workers.memory import device_memory
from workers.metrics import WORKER_STATE
from workers.model_cache import ModelCache
from workers.pool import Pool
from workers.publisher import Publisher
from workers.recorder import OutcomeRecorder
from workers.repository_watch import RepositoryWatch, served_model
from workers.served import ServedModels
from workers.settings import ServeSettings

log = structlog.get_logger()

_RETRY_S = 1.0
_CLOSE_S = 5.0  # after the drain, for committing and closing in all: clients hang in it while a broker is away
_CLOSE_ONE_S = 1.0  # what is left for one of them at least
_LIVE_S = 30.0  # when the loop has not turned for so long, something blocks it for good
_JOIN_S = 300.0  # out of the group for so long: clients have been seen never to come back by themselves


class State(enum.Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class _Stopped(Exception):  # noqa: N818  # not an error: ends the task group in good order
    pass


class Worker:
    """One worker process. `await run()` returns when it has stopped."""

    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self._state = State.STARTING
        self._lock = threading.Lock()
        self._stops = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ticked_s = time.monotonic()
        self._intake: GroupIntake | None = None
        self._joined = asyncio.Event()
        self._close_by_s: float | None = None  # by the loop's clock, from the first thing that is closed
        self.health_port = 0
        self.interrupted = False  # something was not waited for to its end: threads may still run

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def stop(self) -> None:
        """Drain and stop; a second call hurries: running work is given up, what is done is committed.

        Idempotent beyond that, allowed before `run`, and from any thread or signal handler.
        """
        with self._lock:
            self._stops += 1
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._notice_stop)

    async def run(self) -> None:
        """Serve until `stop`. Raises ExceptionGroup of what ended it otherwise."""
        settings = self._settings
        with self._lock:
            self._loop = asyncio.get_running_loop()
        self._notice_stop()
        health = HealthServer(
            host=settings.health_host, port=settings.health_port, is_live=self._is_live, is_ready=self._is_ready
        )
        async with AsyncExitStack() as last:
            self.health_port = health.open()
            last.callback(health.close)
            last.callback(self._enter, State.STOPPED)
            ticks = asyncio.create_task(self._tick(), name="tick")
            last.callback(ticks.cancel)
            log.info("start_worker", pool=settings.pool, health_port=self.health_port)
            try:
                async with asyncio.TaskGroup() as work, AsyncExitStack() as resources:
                    await self._serve(work, resources)
            except* _Stopped:
                log.info("stop_worker")

    async def _serve(self, work: asyncio.TaskGroup, resources: AsyncExitStack) -> None:
        """Open in order, serve, drain; `resources` closes in the reverse order, leaving the group first."""
        settings = self._settings
        pool = Pool(settings)
        await self._until_done(pool.read)
        await self._until_done(pool.provision)
        publisher = Publisher(kafka=settings.kafka_connection(), tasks=work)
        resources.push_async_callback(self._close, "publisher", publisher.close)
        await self._until_done(publisher.open)
        appended_ms = await pool.announce(publisher)
        news = LoadNews(publisher, control_topic=pool.topics.control)
        resources.callback(news.close)
        memory = device_memory(ram_bytes=settings.model_memory_bytes, gpu_ratio=settings.gpu_memory_ratio)
        models = ModelCache(Loader(pool.repository, memory), budgets=memory.budgets, on_state=news.note)
        resources.push_async_callback(self._close, "models", models.close)
        intake = GroupIntake(
            kafka=settings.kafka_connection(),
            group=pool.topics.group(pool.name),
            topics=[topic.name for topic in pool.request_topics.values()],
            clock_seed_us=None if appended_ms is None else now_us() - 1000 * appended_ms,
        )
        resources.push_async_callback(self._close, "group", intake.close)
        recorder = self._recorder(pool, intake, publisher, work)
        resources.callback(recorder.close)
        for name, topic in pool.request_topics.items():
            recorder.add_topic(name, topic)
        served = ServedModels({pool.request_topics[name].name: served_model(pool.models[name]) for name in pool.models})
        engine = Engine(
            served=served,
            models=models,
            intake=intake,
            recorder=recorder,
            tasks=work,
            max_queued_requests=settings.max_queued_requests,
            max_queued_bytes=settings.max_queued_bytes,
        )
        resources.callback(engine.close)
        watch = RepositoryWatch(
            pool,
            served=served,
            models=models,
            on_new=partial(self._serve_new, pool, publisher, recorder, intake),
            on_changed=partial(self._serve_changed, pool, publisher, engine),
            every_s=settings.repository_poll_s,
        )
        engine.fall_back = watch.fall_back
        await self._preload(pool, served, models)
        if pool.models:
            await self._join(intake)
        await self._work(work, engine, intake, watch)

    async def _work(self, work: asyncio.TaskGroup, engine: Engine, intake: GroupIntake, watch: RepositoryWatch) -> None:
        """Serve until told to stop, drain, and end the task group."""
        fetching = work.create_task(self._fetch(engine), name="fetch")
        others = [work.create_task(self._commit_on_timer(intake), name="commit")]
        if self._settings.repository_poll_s:
            others.append(work.create_task(watch.run(), name="watch repository"))
        self._enter(State.SERVING)
        await self._stopping.wait()
        await self._drain(engine, intake, fetching, others)
        raise _Stopped

    async def _preload(self, pool: Pool, served: ServedModels, models: ModelCache) -> None:
        """Load what is to be there before the worker is ready. One that fails is left to its first record."""
        wanted = self._settings.preload
        names = list(pool.models) if "*" in wanted else [name for name in wanted if name in pool.models]
        for name in set(wanted) - set(names) - {"*"}:
            log.error("preload_unknown_model", model=name)
        for name in names:
            model = served.of_topic(pool.request_topics[name].name)
            try:
                resident = await models.acquire(model.key(model.metadata.versions[-1]), model.config)
            except InferenceError as error:
                log.error("preload_failed", model=name, error=error.message)
            else:
                resident.unpin()

    async def _join(self, intake: GroupIntake) -> None:
        await self._until_done(intake.open)
        self._intake = intake
        self._joined.set()

    async def _fetch(self, engine: Engine) -> None:
        await self._joined.wait()  # a pool without models waits for the first one
        await engine.run()

    async def _serve_new(
        self, pool: Pool, publisher: Publisher, recorder: OutcomeRecorder, intake: GroupIntake, name: str
    ) -> None:
        """A model has come into the repository, and its topics are there."""
        recorder.add_topic(name, pool.request_topics[name])
        await intake.subscribe([each.name for each in pool.request_topics.values()])
        if self._intake is None:
            await self._join(intake)
        await pool.announce_one(publisher, name)

    async def _serve_changed(self, pool: Pool, publisher: Publisher, engine: Engine, name: str) -> None:
        """A model is served in a new state."""
        engine.retire(name)
        await pool.announce_one(publisher, name)

    def _recorder(
        self, pool: Pool, intake: GroupIntake, publisher: Publisher, work: asyncio.TaskGroup
    ) -> OutcomeRecorder:
        return OutcomeRecorder(
            intake=intake,
            publisher=publisher,
            store=open_store(self._settings.store),
            topics=pool.topics,
            pool=pool.name,
            tasks=work,
            claim_above_bytes=self._settings.claim_above_bytes,
        )

    async def _drain(
        self, engine: Engine, intake: GroupIntake, fetching: asyncio.Task[None], others: list[asyncio.Task[None]]
    ) -> None:
        """Under one deadline: each step is logged, none is skipped by the failure of the one before.

        1. readiness answers 503
        2. stop fetching
        3. cut what is queued now, await running batches, flush their answers
        4. commit
        5. leave the group (closing the resources does it), then unload models, then close the producer
        6. health and metrics last
        """
        self._enter(State.DRAINING)
        fetching.cancel()
        log.info("drain", step="1-2. readiness 503, fetching stopped")
        draining = asyncio.create_task(engine.drain(), name="drain")
        hurry = asyncio.create_task(self._hurry.wait(), name="hurry")
        await asyncio.wait({draining, hurry}, timeout=self._settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if draining.done():
            draining.result()
            log.info("drain", step="3. work finished, answers flushed")
        else:
            draining.cancel()
            self.interrupted = True
            log.warning("drain", step="3. interrupted, the rest is left to the next owner")
        for task in others:
            task.cancel()
        await self._close("offsets", intake.commit)
        log.info("drain", step="4. committed")

    async def _until_done(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat a step of the start until Kafka and the repository let it succeed; _Stopped when told to stop."""
        while True:
            if self._stopping.is_set():
                raise _Stopped
            try:
                return await step()
            except InferenceError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                log.warning("wait_to_start", error=error.message)
            try:
                async with asyncio.timeout(_RETRY_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def _close(self, what: str, close: Callable[[], Awaitable[None]]) -> None:
        """Do one of the last things, within the time that is left for all of them."""
        now_s = asyncio.get_running_loop().time()
        if self._close_by_s is None:
            self._close_by_s = now_s + _CLOSE_S
        try:
            async with asyncio.timeout_at(max(self._close_by_s, now_s + _CLOSE_ONE_S)):
                await close()
        except TimeoutError:
            self.interrupted = True
            log.warning("close_resource_timed_out", resource=what)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: the client lets the end of one of its own tasks out while the broker is away.
            self.interrupted = True
            log.warning("close_resource_failed", resource=what)

    def _notice_stop(self) -> None:
        if self._stops:
            self._stopping.set()
        if self._stops > 1:
            self._hurry.set()

    def _enter(self, state: State) -> None:
        self._state = state
        WORKER_STATE.state(state.value)

    def _is_live(self) -> bool:
        now_s = time.monotonic()
        intake = self._intake
        if intake is not None and not intake.assigned.is_set() and now_s - intake.unassigned_since_s > _JOIN_S:
            return False
        return now_s - self._ticked_s < _LIVE_S and stuck_threads() < self._settings.max_stuck_threads

    def _is_ready(self) -> bool:
        joined = self._intake is None or self._intake.is_owner  # a pool without models waits for one, and is ready
        return self._state is State.SERVING and joined

    async def _commit_on_timer(self, intake: GroupIntake) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_interval_ms / 1000)
            await intake.commit()

    async def _tick(self) -> None:
        while True:
            self._ticked_s = time.monotonic()
            await asyncio.sleep(1.0)
