"""Webhooks: the parts of webhooks, put together for a process that takes them, one that delivers them, or both."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from gateway.broker import Broker
from gateway.catalogue import Catalogue
from gateway.ended_jobs import EndedJobs
from gateway.group_reader import GroupReader
from gateway.job_id import signing_key
from gateway.kafka_client import BrokerError
from gateway.outcomes import Outcomes
from gateway.settings import GatewaySettings
from gateway.webhook_address import parse_networks
from gateway.webhook_deliverer import WebhookDeliverer
from gateway.webhook_endpoints import WebhookEndpoints
from gateway.webhook_messages import WebhookMessages
from gateway.webhook_metrics import WebhookMetrics
from gateway.webhook_queue import WebhookQueue
from gateway.webhook_redelivery import WebhookRedelivery
from gateway.webhook_routes import WebhookRoutes
from gateway.webhook_schedule import Schedule
from gateway.webhook_secrets import WebhookSecrets, parse_secrets, parse_tenant_secrets
from gateway.webhook_sender import Resolver, WebhookSender
from gateway.webhook_states import WebhookStates
from gateway.webhook_submissions import WebhookSubmissions
from gateway.webhook_url import WebhookRules
from schemas.topics import Topics
from store.object_store import ObjectStore

_log = structlog.get_logger(__name__)

_GROUP = "webhooks"
_HELD_PER_ATTEMPT = 4  # records in memory for each that may be attempted at a time
_GAUGE_EVERY_S = 5.0


class Webhooks:
    """What the rest of the gateway needs of webhooks. Off, and nearly nothing, without a secret to sign them with."""

    def __init__(
        self,
        *,
        settings: GatewaySettings,
        broker: Broker,
        catalogue: Catalogue,
        outcomes: Outcomes,
        store: ObjectStore,
        registry: CollectorRegistry,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._catalogue = catalogue
        self._outcomes = outcomes
        self._store = store
        self._topics = Topics(settings.prefix)
        self._rules = WebhookRules(
            networks=parse_networks(settings.webhook_allow_networks), allow_http=settings.webhook_allow_http
        )
        common = parse_secrets(settings.webhook_secrets.get_secret_value())
        by_tenant = parse_tenant_secrets(settings.webhook_tenant_secrets.get_secret_value())
        self._secrets = WebhookSecrets(common, by_tenant)
        self._states = WebhookStates(store)
        self._queue = WebhookQueue(broker=broker, topics=self._topics)
        self._registry = registry
        self._reader: GroupReader | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.enabled = bool(common or by_tenant)
        self.submissions = WebhookSubmissions(rules=self._rules, secrets=self._secrets)

    @property
    def ready(self) -> bool:
        """Whether this process is a member of the delivering group."""
        return self._reader is not None and self._reader.joined.is_set()

    def routes(self) -> list[Route]:
        """What to mount."""
        return WebhookRoutes(
            states=self._states,
            queue=self._queue,
            outcomes=self._outcomes,
            topics=self._topics,
            job_key=signing_key(self._settings.job_key.get_secret_value()),
        ).routes()

    def redelivery(self) -> WebhookRedelivery:
        """What has dead letters delivered again."""
        return WebhookRedelivery(broker=self._broker, states=self._states, queue=self._queue)

    async def ensure_topics(self) -> None:
        """Create the topics that deliveries need. Raises BrokerError or TimeoutError."""
        if self.enabled:
            await self._queue.ensure(replication_factor=self._settings.replication_factor)

    async def deliver(self, stopping: asyncio.Event) -> None:
        """Deliver until `stopping`, then finish within the drain's time. The catalogue must be complete by now."""
        metrics, resolver = WebhookMetrics(self._registry), Resolver()
        settings = self._settings
        endpoints = WebhookEndpoints(
            concurrency=settings.webhook_concurrency, endpoint_concurrency=settings.webhook_endpoint_concurrency
        )
        deliverer = self._deliverer(metrics, resolver, endpoints)
        reader = self._reader = GroupReader(
            join=partial(self._broker.join, self._topics.group(_GROUP), self._topics.webhooks_source),
            take=deliverer.take,
            limit=_HELD_PER_ATTEMPT * settings.webhook_concurrency,
        )
        self._idle.clear()
        gauge = asyncio.create_task(self._gauge_regularly(reader, metrics), name="webhook gauge")
        try:
            await reader.run(stopping, drain_s=settings.drain_s)
        finally:
            gauge.cancel()
            resolver.close()
            self._idle.set()

    async def ended(self) -> None:
        """Wait until nothing is being delivered."""
        await self._idle.wait()

    def _deliverer(self, metrics: WebhookMetrics, resolver: Resolver, endpoints: WebhookEndpoints) -> WebhookDeliverer:
        settings = self._settings
        messages = WebhookMessages(
            topics=self._topics,
            job_key=signing_key(settings.job_key.get_secret_value()),
            secrets=self._secrets,
            inline_bytes=settings.webhook_inline_bytes,
            base_url=settings.webhook_base_url,
        )
        deliverer = WebhookDeliverer(
            jobs=EndedJobs(catalogue=self._catalogue, outcomes=self._outcomes, store=self._store),
            states=self._states,
            queue=self._queue,
            messages=messages,
            sender=WebhookSender(rules=self._rules, resolve=resolver, timeout_s=settings.webhook_timeout_s),
            endpoints=endpoints,
            schedule=Schedule.parse(settings.webhook_retry_s),
            metrics=metrics,
        )
        metrics.watch(
            oldest_s=lambda: deliverer.oldest_s(self._holds),
            down=lambda: endpoints.down(now_ms=time.time_ns() // 1_000_000),
        )
        return deliverer

    def _holds(self, partition: int) -> bool:
        return self._reader is not None and (self._queue.retry_topic, partition) in self._reader.positions()

    async def _gauge_regularly(self, reader: GroupReader, metrics: WebhookMetrics) -> None:
        """For ever: count what waits in the partitions that are held."""
        while True:
            await asyncio.sleep(_GAUGE_EVERY_S)
            topic = self._queue.retry_topic
            positions = {partition: at for (name, partition), at in reader.positions().items() if name == topic}
            try:
                ends = await self._broker.ends(topic, positions) if positions else {}
            except (BrokerError, TimeoutError) as error:
                _log.warning("count_webhooks_failed", error=repr(error))
                continue
            metrics.pending.set(sum(max(0, ends[partition] - at) for partition, at in positions.items()))
