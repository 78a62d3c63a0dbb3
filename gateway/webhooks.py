"""Webhooks: the parts of webhooks, put together for a process that takes them, one that delivers them, or both."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from gateway.broker import Broker
from gateway.catalogue import Catalogue
from gateway.ended_jobs import EndedJobs
from gateway.job_id import signing_key
from gateway.outcomes import Outcomes
from gateway.settings import GatewaySettings
from gateway.webhook_address import parse_networks
from gateway.webhook_queue import WebhookQueue
from gateway.webhook_redelivery import WebhookRedelivery
from gateway.webhook_routes import WebhookRoutes
from gateway.webhook_secrets import WebhookSecrets, parse_secrets, parse_tenant_secrets
from gateway.webhook_states import WebhookStates
from gateway.webhook_submissions import WebhookSubmissions
from gateway.webhook_url import WebhookRules
from schemas.topics import Topics
from store.object_store import ObjectStore

if TYPE_CHECKING:
    from gateway.webhook_delivering import WebhookDelivering

_log = structlog.get_logger(__name__)


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
        self._delivering: WebhookDelivering | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.enabled = bool(common or by_tenant)
        self.submissions = WebhookSubmissions(rules=self._rules, secrets=self._secrets)

    @property
    def ready(self) -> bool:
        """Whether this process is a member of the delivering group."""
        return self._delivering is not None and self._delivering.reader.joined.is_set()

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
        from gateway.webhook_delivering import WebhookDelivering  # here: who only takes webhooks spares its memory

        self._idle.clear()
        try:
            delivering = self._delivering = WebhookDelivering(
                settings=self._settings,
                broker=self._broker,
                jobs=EndedJobs(catalogue=self._catalogue, outcomes=self._outcomes, store=self._store),
                states=self._states,
                queue=self._queue,
                rules=self._rules,
                secrets=self._secrets,
                registry=self._registry,
            )
            await delivering.run(stopping)
        finally:
            self._idle.set()

    async def ended(self) -> None:
        """Wait until nothing is being delivered."""
        await self._idle.wait()
