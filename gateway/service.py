"""Service: the gateway's life, STARTING -> SERVING -> DRAINING -> STOPPED. Builds the parts, starts and stops them.

Must not know what a request or a record looks like.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import secrets
import signal
import threading
import time
from collections.abc import Coroutine
from enum import Enum
from typing import Any

import structlog

from gateway.access_log import AccessLog
from gateway.app import make_app
from gateway.backlog import Backlog
from gateway.broker import Broker, BrokerError, Follower
from gateway.catalogue import Catalogue
from gateway.dispatcher import Dispatcher
from gateway.edge import Edge
from gateway.fleet import Fleet
from gateway.infer import Infer
from gateway.job_id import signing_key
from gateway.jobs import Jobs
from gateway.metrics import Metrics
from gateway.models import Models
from gateway.outcomes import Outcomes
from gateway.replies import CONFIGS as REPLY_CONFIGS
from gateway.replies import Replies
from gateway.repository import Repository
from gateway.scaling import Scaling
from gateway.server import Server
from gateway.settings import GatewaySettings
from gateway.statistics import Statistics
from gateway.status import Status
from gateway.status_page import status_routes
from gateway.tracing import Tracing
from schemas.topics import Topics
from store import StoreError, open_store
from store.directory import DirectoryStore

_log = structlog.get_logger(__name__)

_FIRST_RETRY_S = 0.2
_LAST_RETRY_S = 3.0
_JOB_IDS_BEFORE_END_S = 3.0  # when waiting callers get job ids instead, before the drain's deadline
_CONTROL_CONFIGS = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


class State(Enum):
    """Where in its life the gateway is."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


def _sweep(store: DirectoryStore) -> None:
    """Remove what killed writers left, as far as the store lets us."""
    with contextlib.suppress(StoreError):
        store.sweep()


class Service:
    """One gateway. `run` returns when it has stopped; what it cannot survive, it raises."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._topics = Topics(settings.prefix)
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
        self._build()
        try:
            async with asyncio.TaskGroup() as group:
                await self._live(group)
        finally:
            self._outcomes.stop()
            await self._broker.stop()
            self._enter(State.STOPPED)

    def _build(self) -> None:
        settings, topics = self._settings, self._topics
        gateway_id = secrets.token_hex(8)
        job_key = signing_key(settings.job_key.get_secret_value())
        self._broker = Broker(bootstrap=settings.kafka_bootstrap, client_id=f"tidegate-gateway-{gateway_id}")
        self._news: asyncio.Queue[str] = asyncio.Queue()
        self._catalogue = Catalogue(on_announced=lambda model: self._news.put_nowait(model.topic))
        self._fleet = Fleet()
        store = open_store(settings.store)
        if isinstance(store, DirectoryStore):  # of all that share the directory, gateways start least often
            threading.Thread(target=_sweep, args=(store,), name="sweep store", daemon=True).start()
        self._outcomes = Outcomes(store=store, catalogue=self._catalogue, metrics=self._metrics)
        self._dispatcher = Dispatcher(
            broker=self._broker,
            outcomes=self._outcomes,
            topics=topics,
            gateway_id=gateway_id,
            job_key=job_key,
            max_in_flight=settings.max_in_flight,
            claim_above_bytes=settings.claim_above_bytes,
        )
        self._metrics.watch_in_flight(lambda: self._dispatcher.in_flight)
        self._replies = Replies(
            broker=self._broker,
            topics=topics,
            gateway_id=gateway_id,
            outcomes=self._outcomes,
            metrics=self._metrics,
            answer=self._dispatcher.answer,
            longest_wait_s=settings.wait_s,
            rng=random.Random(),
        )
        self._build_http(job_key)

    def _build_http(self, job_key: bytes) -> None:
        settings, topics, catalogue, outcomes = self._settings, self._topics, self._catalogue, self._outcomes
        backlog = Backlog(broker=self._broker, catalogue=catalogue, topics=topics, cache_ms=settings.status_cache_ms)
        self._scaling = Scaling(backlog=backlog, catalogue=catalogue, topics=topics, metrics=self._metrics)
        models = Models(catalogue=catalogue, is_ready=lambda: self._state is State.SERVING)
        jobs = Jobs(outcomes=outcomes, catalogue=catalogue, backlog=backlog, topics=topics, job_key=job_key)
        edge = Edge(
            next_id=self._dispatcher.next_id,
            access_log=AccessLog(settings.access_log),
            tracing=Tracing.if_on(),
        )
        infer = Infer(
            catalogue=catalogue,
            dispatcher=self._dispatcher,
            outcomes=outcomes,
            metrics=self._metrics,
            edge=edge,
            wait_s=settings.wait_s,
            max_body_bytes=settings.max_body_bytes,
        )
        self._statistics = Statistics(catalogue=catalogue, fleet=self._fleet)
        self._repository = Repository(broker=self._broker, topics=topics, catalogue=catalogue, fleet=self._fleet)
        status = Status(
            catalogue=catalogue,
            fleet=self._fleet,
            backlog=backlog,
            state=lambda: self._state.value,
            in_flight=lambda: self._dispatcher.in_flight,
        )
        routes = [
            *self._statistics.routes(),
            *models.routes(),
            *self._repository.routes(),
            *self._repository.management_routes(),
            *jobs.routes(),
            *self._scaling.routes(),
            *status_routes(status),
        ]
        app = make_app(infer=infer, routes=routes, metrics=self._metrics, edge=edge)
        self._server = Server.of(app, host=settings.host, port=settings.port)

    async def _live(self, group: asyncio.TaskGroup) -> None:
        server = group.create_task(self._serve_http(), name="http server")
        tasks: list[asyncio.Task[Any]] = []

        def beside(work: Coroutine[Any, Any, None], name: str) -> None:
            tasks.append(group.create_task(work, name=name))

        if await self._unless_stopping(self._connect(beside)):
            gc.collect()
            gc.freeze()  # what is here now stays: no collection needs to look at it again
            self._enter(State.SERVING)
            await self._stopping.wait()
        await self._drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._broker.stop()
        _log.info("drain", step="close the HTTP server, health and metrics last")
        self._server.should_exit = True
        await server

    async def _connect(self, beside: Any) -> None:
        """Reach Kafka however long it takes; then read replies and control until both are complete."""
        await self._again_and_again(self._broker.start)
        count = await self._again_and_again(self._ensure_topics)
        await self._again_and_again(lambda: self._replies.claim(count))
        control = await self._again_and_again(self._open_control)
        follower, ends = control
        reading, known = asyncio.Event(), asyncio.Event()

        def check_known() -> None:
            if not known.is_set() and all(follower.positions[partition] >= end for partition, end in ends.items()):
                self._catalogue.complete = True
                known.set()

        def learn(records: Any) -> None:
            for record in records:
                self._catalogue.apply(record.key, record.value)
                self._fleet.apply(record.key, record.value)

        beside(self._replies.read(on_poll=reading.set), "reply reader")
        beside(follower.run(learn, on_poll=check_known), "control reader")
        beside(self._broker.keep_producer(), "producer keeper")
        beside(self._learn_topics(), "topic learner")
        await reading.wait()
        await self._again_and_again(self._replies.commit)
        await self._again_and_again(self._replies.hold)  # another gateway may have claimed it in the same moment
        await known.wait()
        self._replies.on_moved = lambda partition: self._dispatcher.open(reply_partition=partition)
        self._dispatcher.open(reply_partition=self._replies.partition)
        beside(self._replies.hold_regularly(), "partition holder")
        beside(self._replies.adopt_regularly(), "orphan adopter")
        beside(self._scaling.gauge_regularly(), "backlog gauge")

    async def _ensure_topics(self) -> int:
        copies = self._settings.replication_factor
        await self._broker.ensure_topic(
            self._topics.control, partitions=1, replication_factor=copies, configs=_CONTROL_CONFIGS
        )
        return await self._broker.ensure_topic(
            self._topics.replies,
            partitions=self._settings.reply_partitions,
            replication_factor=copies,
            configs=REPLY_CONFIGS,
        )

    async def _open_control(self) -> tuple[Follower, dict[int, int]]:
        topic = self._topics.control
        partitions = range(await self._broker.learn(topic))
        begin = await self._broker.beginnings(topic, partitions)
        ends = await self._broker.ends(topic, partitions)
        return self._broker.follow(topic, begin), ends

    async def _learn_topics(self) -> None:
        """For ever: look new request topics up before the first request needs them."""
        while True:
            topic = await self._news.get()
            with contextlib.suppress(BrokerError):  # the first request tries again, and tells its caller
                await self._broker.learn(topic)

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
        if not served:
            return
        _log.info("drain", step="2. refuse new requests, wait for answers", in_flight=self._dispatcher.in_flight)
        self._replies.on_moved = lambda partition: None
        await self._dispatcher.drain(grace_s=left_s() - _JOB_IDS_BEFORE_END_S, hurry=self._hurry)
        _log.info("drain", step="3. give job ids to who still waits", in_flight=self._dispatcher.in_flight)
        await _within(left_s(), self._dispatcher.idle())
        _log.info("drain", step="4. flush the producer")
        await _within(left_s(), self._broker.flush())
        _log.info("drain", step="5. store late answers")
        await _within(left_s(), self._outcomes.settle())
        _log.info("drain", step="6. commit the reply position and release the partition")
        await _within(max(left_s(), 1.0), self._replies.commit(release=True))

    async def _serve_http(self) -> None:
        await self._server.serve()

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
