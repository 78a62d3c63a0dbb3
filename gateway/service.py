"""Service: the gateway's life, STARTING -> SERVING -> DRAINING -> STOPPED. Builds the parts, starts and stops them.

Must not know what a request or a record looks like.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from collections.abc import Coroutine
from enum import Enum
from typing import Any

import structlog

from gateway.audit import CONFIGS as AUDIT_CONFIGS
from gateway.control_reader import ControlReader
from gateway.front import Front
from gateway.kafka_client import BrokerError
from gateway.metrics import Metrics
from gateway.parts import Parts
from gateway.replies import CONFIGS as REPLY_CONFIGS
from gateway.settings import GatewaySettings
from schemas.topics import CONTROL_CONFIGS

_log = structlog.get_logger(__name__)

_FIRST_RETRY_S = 0.2
_LAST_RETRY_S = 3.0
_JOB_IDS_BEFORE_END_S = 3.0  # when waiting callers get job ids instead, before the drain's deadline


class State(Enum):
    """Where in its life the gateway is."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


class Service:
    """One gateway. `run` returns when it has stopped; what it cannot survive, it raises."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._state = State.STARTING
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._stops_asked = 0
        self._stopping: asyncio.Event
        self._hurry: asyncio.Event

    @property
    def state(self) -> State:
        """Where in its life the gateway is."""
        return self._state

    def stop(self) -> None:
        """Ask for an orderly stop; asked again, hurry. Returns at once. From any thread, before `run` too."""
        with self._lock:
            self._stops_asked += 1
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_stop)

    async def run(self) -> None:
        """Serve until stopped. Raises when a part fails that should never; the gateway is stopped then as well."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
            if self._stops_asked:
                self._enter(State.STOPPED)
                return
        for number in (signal.SIGTERM, signal.SIGINT):
            # Only a main thread may handle signals; elsewhere stop() is what there is.
            with contextlib.suppress(RuntimeError, ValueError):
                self._loop.add_signal_handler(number, self.stop)
        self._enter(State.STARTING)
        parts = self._parts = Parts(self._settings, self._metrics)
        self._front = Front(self._settings, parts, self._metrics, state=lambda: self._state.value)
        parts.sweep_store()
        try:
            async with asyncio.TaskGroup() as group:
                await self._live(group)
        finally:
            self._parts.outcomes.stop()
            await self._front.grpc.stop()
            await self._parts.broker.stop()
            self._enter(State.STOPPED)

    async def _live(self, group: asyncio.TaskGroup) -> None:
        await self._parts.access.start()
        await self._front.grpc.start()
        servers = [group.create_task(server.serve(), name="http server") for server in self._front.http]
        tasks: list[asyncio.Task[Any]] = []

        def beside(work: Coroutine[Any, Any, None], name: str) -> None:
            tasks.append(group.create_task(work, name=name))

        if await self._unless_stopping(self._connect(beside)):
            gc.collect()
            gc.freeze()  # what is here now stays: no collection needs to look at it again
            self._enter(State.SERVING)
            await self._front.grpc.note_change()
            await self._stopping.wait()
        await self._drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._parts.broker.stop()
        _log.info("drain", step="close the HTTP server, health and metrics last")
        for server in self._front.http:
            server.should_exit = True
        await asyncio.gather(*servers)

    async def _connect(self, beside: Any) -> None:
        """Reach Kafka however long it takes; then read replies and control until both are complete."""
        parts = self._parts
        await self._again_and_again(parts.broker.start)
        count = await self._again_and_again(self._ensure_topics)
        await self._again_and_again(lambda: parts.replies.claim(count))
        control = ControlReader(broker=parts.broker, topic=parts.topics.control)
        await self._again_and_again(control.open)
        reading = asyncio.Event()

        beside(parts.replies.read(on_poll=reading.set), "reply reader")
        beside(control.run(parts.apply), "control reader")
        beside(parts.broker.keep_producer(), "producer keeper")
        beside(parts.broker.reachability.watch(), "Kafka watch")
        beside(parts.access.follow_file(), "key file reader")
        beside(parts.queues.run(), "queue watch")
        beside(self._learn_topics(), "topic learner")
        await reading.wait()
        await self._again_and_again(parts.replies.commit)
        await self._again_and_again(parts.replies.hold)  # another gateway may have claimed it in the same moment
        await control.known.wait()
        parts.catalogue.complete = True
        parts.replies.on_moved = lambda partition: parts.dispatcher.open(reply_partition=partition)
        parts.dispatcher.open(reply_partition=parts.replies.partition)
        beside(parts.replies.hold_regularly(), "partition holder")
        beside(parts.replies.adopt_regularly(), "orphan adopter")
        beside(parts.scaling.gauge_regularly(), "backlog gauge")
        beside(parts.jobs.sweeper.sweep_regularly(), "sweeper")
        if self._settings.webhooks_in_process and parts.webhooks.enabled:
            beside(parts.webhooks.deliver(self._stopping), "webhook deliverer")

    async def _ensure_topics(self) -> int:
        parts = self._parts
        copies = self._settings.replication_factor
        await parts.webhooks.ensure_topics()
        await parts.broker.ensure_topic(
            parts.topics.audit, partitions=1, replication_factor=copies, configs=AUDIT_CONFIGS
        )
        await parts.broker.ensure_topic(
            parts.topics.control, partitions=1, replication_factor=copies, configs=CONTROL_CONFIGS
        )
        return await parts.broker.ensure_topic(
            parts.topics.replies,
            partitions=self._settings.reply_partitions,
            replication_factor=copies,
            configs=REPLY_CONFIGS,
        )

    async def _learn_topics(self) -> None:
        """For ever: look new request topics up before the first request needs them."""
        while True:
            topic = await self._parts.news.get()
            with contextlib.suppress(BrokerError):  # the first request tries again, and tells its caller
                await self._parts.broker.learn(topic)

    async def _again_and_again(self, attempt: Any) -> Any:
        wait_s, failed = _FIRST_RETRY_S, False
        while True:
            try:
                return await attempt()
            except (BrokerError, TimeoutError) as error:
                if not failed:
                    _log.warning("kafka_unreachable", bootstrap=self._settings.kafka_bootstrap, error=repr(error))
                failed = True
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)

    async def _unless_stopping(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work; False when a stop came first, and the work was cancelled."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return True
            return False
        finally:
            stopping.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _drain(self) -> None:
        served = self._state is State.SERVING
        deadline_s = time.monotonic() + self._settings.drain_s

        def left_s() -> float:
            return 0.0 if self._hurry.is_set() else max(0.0, deadline_s - time.monotonic())

        _log.info("drain", step="1. readiness 503", deadline_s=self._settings.drain_s)
        self._enter(State.DRAINING)
        await self._front.grpc.note_change()
        if not served:
            return
        self._parts.jobs.watch.stop()
        _log.info("drain", step="2. refuse new requests, wait for answers", in_flight=self._parts.dispatcher.in_flight)
        self._parts.replies.on_moved = lambda partition: None
        await self._parts.dispatcher.drain(grace_s=left_s() - _JOB_IDS_BEFORE_END_S, hurry=self._hurry)
        _log.info("drain", step="3. give job ids to who still waits", in_flight=self._parts.dispatcher.in_flight)
        await _within(left_s(), self._parts.dispatcher.idle())
        await self._front.grpc.stop()
        _log.info("drain", step="4. finish webhooks, flush the producer")
        await _within(left_s(), self._parts.webhooks.ended())
        await _within(left_s(), self._parts.broker.flush())
        _log.info("drain", step="5. store late answers")
        await _within(left_s(), self._parts.outcomes.settle())
        _log.info("drain", step="6. commit the reply position and release the partition")
        await _within(max(left_s(), 1.0), self._parts.replies.commit(release=True))

    def _on_stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def _enter(self, state: State) -> None:
        self._state = state
        for each in State:
            self._metrics.state.labels(each.value).set(1 if each is state else 0)
        _log.info("enter_state", state=state.value)


async def _within(timeout_s: float, work: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except (TimeoutError, BrokerError) as error:
        _log.warning("drain_step_incomplete", error=repr(error))
