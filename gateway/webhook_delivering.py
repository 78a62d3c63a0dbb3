"""WebhookDelivering: the parts that deliver webhooks, built and run; for processes that do not only take them."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from gateway.broker import Broker
from gateway.ended_jobs import EndedJobs
from gateway.group_reader import GroupReader
from gateway.job_id import signing_key
from gateway.kafka_client import BrokerError
from gateway.settings import GatewaySettings
from gateway.webhook_deliverer import WebhookDeliverer
from gateway.webhook_endpoints import WebhookEndpoints
from gateway.webhook_messages import WebhookMessages
from gateway.webhook_metrics import WebhookMetrics
from gateway.webhook_queue import WebhookQueue
from gateway.webhook_schedule import Schedule
from gateway.webhook_secrets import WebhookSecrets
from gateway.webhook_sender import Resolver, WebhookSender
from gateway.webhook_states import WebhookStates
from gateway.webhook_url import WebhookRules
from schemas.topics import Topics

_log = structlog.get_logger(__name__)

_GROUP = "webhooks"
_HELD_PER_ATTEMPT = 4  # records in memory for each that may be attempted at a time
_GAUGE_EVERY_S = 5.0


class WebhookDelivering:
    """One member of the delivering group; `reader` tells whether it has joined."""

    def __init__(
        self,
        *,
        settings: GatewaySettings,
        broker: Broker,
        jobs: EndedJobs,
        states: WebhookStates,
        queue: WebhookQueue,
        rules: WebhookRules,
        secrets: WebhookSecrets,
        registry: CollectorRegistry,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._queue = queue
        self._metrics, self._resolver = WebhookMetrics(registry), Resolver()
        topics = Topics(settings.prefix)
        endpoints = WebhookEndpoints(
            concurrency=settings.webhook_concurrency, endpoint_concurrency=settings.webhook_endpoint_concurrency
        )
        messages = WebhookMessages(
            topics=topics,
            job_key=signing_key(settings.job_key.get_secret_value()),
            secrets=secrets,
            inline_bytes=settings.webhook_inline_bytes,
            base_url=settings.webhook_base_url,
        )
        deliverer = WebhookDeliverer(
            jobs=jobs,
            states=states,
            queue=queue,
            messages=messages,
            sender=WebhookSender(rules=rules, resolve=self._resolver, timeout_s=settings.webhook_timeout_s),
            endpoints=endpoints,
            schedule=Schedule.parse(settings.webhook_retry_s),
            metrics=self._metrics,
        )
        self._metrics.watch(
            oldest_s=lambda: deliverer.oldest_s(self._holds),
            down=lambda: endpoints.down(now_ms=time.time_ns() // 1_000_000),
        )
        self.reader = GroupReader(
            join=partial(broker.join, topics.group(_GROUP), topics.webhooks_source),
            take=deliverer.take,
            limit=_HELD_PER_ATTEMPT * settings.webhook_concurrency,
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until `stopping`, then finish within the drain's time."""
        gauge = asyncio.create_task(self._gauge_regularly(), name="webhook gauge")
        try:
            await self.reader.run(stopping, drain_s=self._settings.drain_s)
        finally:
            gauge.cancel()
            self._resolver.close()

    def _holds(self, partition: int) -> bool:
        return (self._queue.retry_topic, partition) in self.reader.positions()

    async def _gauge_regularly(self) -> None:
        """For ever: count what waits in the partitions that are held."""
        while True:
            await asyncio.sleep(_GAUGE_EVERY_S)
            topic = self._queue.retry_topic
            positions = {partition: at for (name, partition), at in self.reader.positions().items() if name == topic}
            try:
                ends = await self._broker.ends(topic, positions) if positions else {}
            except (BrokerError, TimeoutError) as error:
                _log.warning("count_webhooks_failed", error=repr(error))
                continue
            self._metrics.pending.set(sum(max(0, ends[partition] - at) for partition, at in positions.items()))
