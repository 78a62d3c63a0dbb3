"""WebhookService: the life of a process that delivers webhooks and does nothing else. Health and metrics over HTTP.

Any number of them share the work, as members of one consumer group. Must not know what a webhook looks like.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from typing import Annotated

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field, field_validator
from pydantic_settings import CliImplicitFlag, SettingsConfigDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.broker import Broker
from gateway.byte_budget import ByteBudget
from gateway.catalogue import Catalogue
from gateway.control_reader import ControlReader
from gateway.kafka_client import Record
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes
from gateway.retrying import insist
from gateway.server import Server
from gateway.settings import GatewaySettings
from gateway.webhook_redelivery import parse_age_s
from gateway.webhooks import Webhooks
from schemas.topics import Topics
from store import open_store

_log = structlog.get_logger(__name__)

_BEYOND_DRAIN_S = 5.0  # for a round of the group that is under way when the stop comes


class WebhookServiceSettings(GatewaySettings):
    """Delivers webhooks of ended jobs, or has dead letters delivered again. Takes the gateways' own settings.

    Every option is also an environment variable: --kafka-bootstrap is TIDEGATE_KAFKA_BOOTSTRAP. An option wins.
    """

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", cli_kebab_case=True, cli_prog_name="python -m gateway webhooks", frozen=True
    )

    port: Annotated[
        int, Field(ge=0, le=65535, description="TCP port of health and metrics; 0: any free one, see the log.")
    ] = 8001
    redeliver_dead: Annotated[
        CliImplicitFlag[bool], Field(description="Have the webhooks that were given up delivered again, and end.")
    ] = False
    since: Annotated[
        str, Field(description="With --redeliver-dead: those given up no longer ago than this: 90s, 30m, 2h, 7d.")
    ] = "24h"
    until: Annotated[str, Field(description="With --redeliver-dead: those given up at least so long ago.")] = "0s"

    @field_validator("since", "until")
    @classmethod
    def _age(cls, text: str) -> str:
        parse_age_s(text)
        return text


class WebhookService:
    """One process. `run` returns when it has stopped; what it cannot survive, it raises."""

    def __init__(self, settings: WebhookServiceSettings) -> None:
        self._settings = settings
        self._topics = Topics(settings.prefix)
        self._metrics = Metrics()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._catalogue = Catalogue()
        self._broker = Broker(kafka=settings.kafka_connection(), client_id=f"tidegate-webhooks-{secrets.token_hex(8)}")
        store = open_store(settings.store)
        self._webhooks = Webhooks(
            settings=settings,
            broker=self._broker,
            catalogue=self._catalogue,
            outcomes=Outcomes(store=store, catalogue=self._catalogue, metrics=self._metrics),
            store=store,
            registry=self._metrics.registry,
        )
        routes = [
            Route("/v2/health/live", _get_live, methods=["GET"]),
            Route("/v2/health/ready", self._get_ready, methods=["GET"]),
            Route("/metrics", self._get_metrics, methods=["GET"]),
        ]
        self._server = Server.of(
            Starlette(routes=routes),
            settings.listener(),
            limits=settings.connection_limits(),
            budget=ByteBudget(settings.max_in_flight_bytes),
        )

    async def run(self) -> None:
        """Deliver until SIGTERM or SIGINT; a second one hurries."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Only a main thread may handle signals.
            with contextlib.suppress(RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop)
        async with asyncio.TaskGroup() as group:
            server = group.create_task(self._server.serve(), name="http server")
            work = group.create_task(self._work(), name="webhooks")
            ends = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._hurry)]
            await asyncio.wait((work, ends[0]), return_when=asyncio.FIRST_COMPLETED)
            patience_s = self._settings.drain_s + _BEYOND_DRAIN_S
            await asyncio.wait((work, ends[1]), timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in (work, *ends):
                task.cancel()
            await asyncio.gather(work, *ends, return_exceptions=True)
            self._server.should_exit = True
            await server
        _log.info("enter_state", state="stopped")

    def stop(self) -> None:
        """Ask for an orderly stop; asked again, hurry."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def redeliver(self, *, since_ms: int, until_ms: int) -> int:
        """Have the dead letters of a range of time delivered again; how many. Raises as WebhookRedelivery does."""
        await self._broker.start()
        try:
            await self._webhooks.ensure_topics()
            return await self._webhooks.redelivery().run(since_ms=since_ms, until_ms=until_ms)
        finally:
            await self._broker.stop()

    async def _work(self) -> None:
        try:
            await insist(self._broker.start, event="kafka_unreachable")
            await insist(self._webhooks.ensure_topics, event="kafka_unreachable")
            control = ControlReader(broker=self._broker, topic=self._topics.control)
            await insist(control.open, event="kafka_unreachable")
            async with asyncio.TaskGroup() as beside:
                tasks = [
                    beside.create_task(control.run(self._learn), name="control reader"),
                    beside.create_task(self._broker.keep_producer(), name="producer keeper"),
                ]
                await control.known.wait()
                self._catalogue.complete = True
                await self._webhooks.deliver(self._stopping)
                for task in tasks:
                    task.cancel()
        finally:
            await self._broker.stop()

    def _learn(self, record: Record) -> None:
        self._catalogue.apply(record.key, record.value)

    async def _get_ready(self, request: Request) -> Response:
        ready = self._webhooks.ready and not self._stopping.is_set()
        return Response(msgspec.json.encode({"ready": ready}), 200 if ready else 503, media_type="application/json")

    async def _get_metrics(self, request: Request) -> Response:
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _get_live(request: Request) -> Response:
    return Response(b'{"live":true}', media_type="application/json")
