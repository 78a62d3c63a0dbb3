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
from typing import Any

import structlog

from schemas.errors import ErrorCode, InferenceError
from workers.engine import Engine
from workers.group_intake import GroupIntake
from workers.health import HealthServer
from workers.instance import stuck_threads
from workers.lane import now_us
from workers.metrics import WORKER_STATE
from workers.pool import Pool
from workers.publisher import Publisher
from workers.reporter import Reporter
from workers.serving import Serving
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
        self._reporter: Reporter | None = None
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
        seed_us = None if appended_ms is None else now_us() - 1000 * appended_ms
        parts = Serving(settings, pool, publisher, work, clock_seed_us=seed_us, join=lambda: self._join(parts.intake))
        self._reporter = parts.reporter
        resources.push_async_callback(self._close, "report", parts.reporter.close)
        resources.callback(parts.news.close)
        resources.push_async_callback(self._close, "models", parts.models.close)
        resources.push_async_callback(self._close, "control", parts.desk.close)
        resources.push_async_callback(self._close, "group", parts.intake.close)
        resources.callback(parts.recorder.close)
        resources.callback(parts.engine.close)
        reporting = work.create_task(parts.reporter.run(), name="report")
        await self._until_done(parts.desk.catch_up)  # first: who is cancelled must not run
        await parts.preload()
        if pool.models:  # else with the first that comes
            await self._join(parts.intake)
        await self._work(work, parts, reporting)

    async def _work(self, work: asyncio.TaskGroup, parts: Serving, reporting: asyncio.Task[None]) -> None:
        """Serve until told to stop, drain, and end the task group."""
        fetching = work.create_task(self._fetch(parts.engine), name="fetch")
        others = [
            reporting,
            work.create_task(parts.commit_on_timer(), name="commit"),
            work.create_task(parts.desk.run(), name="control"),
        ]
        if self._settings.repository_poll_s:
            others.append(work.create_task(parts.watch.run(), name="watch repository"))
        self._enter(State.SERVING)
        await self._stopping.wait()
        await self._drain(parts, fetching, others)
        raise _Stopped

    async def _join(self, intake: GroupIntake) -> None:
        if self._intake is None:
            await self._until_done(intake.open)
            self._intake = intake
            self._joined.set()

    async def _fetch(self, engine: Engine) -> None:
        await self._joined.wait()  # a pool without models waits for the first one
        await engine.run()

    async def _drain(self, parts: Serving, fetching: asyncio.Task[None], others: list[asyncio.Task[None]]) -> None:
        """Under one deadline: each step is logged, none is skipped by the failure of the one before.

        1. readiness answers 503
        2. stop fetching
        3. cut what is queued now, await running batches, flush their answers
        4. commit, and remove what nobody needs on the control topic
        5. leave the group (closing the resources does it), then unload models, then close the producer
        6. health and metrics last
        """
        self._enter(State.DRAINING)
        fetching.cancel()
        log.info("drain", step="1-2. readiness 503, fetching stopped")
        draining = asyncio.create_task(parts.engine.drain(), name="drain")
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
        await self._close("offsets", parts.intake.commit)
        await self._close("cancellations", parts.clear_up)
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
        if self._reporter is not None:
            self._reporter.enter(state.value)

    def _is_live(self) -> bool:
        now_s = time.monotonic()
        intake = self._intake
        if intake is not None and not intake.assigned.is_set() and now_s - intake.unassigned_since_s > _JOIN_S:
            return False
        return now_s - self._ticked_s < _LIVE_S and stuck_threads() < self._settings.max_stuck_threads

    def _is_ready(self) -> bool:
        joined = self._intake is None or self._intake.is_owner  # a pool without models waits for one, and is ready
        return self._state is State.SERVING and joined

    async def _tick(self) -> None:
        while True:
            self._ticked_s = time.monotonic()
            await asyncio.sleep(1.0)
