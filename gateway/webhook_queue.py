"""WebhookQueue: where deliveries wait for their next attempt, and where they lie when given up: two topics of Kafka.

Knows no Kafka client and no HTTP. How a topic can hold waits: `webhook_schedule.py`.
"""

from __future__ import annotations

import msgspec

from gateway.broker import Broker
from gateway.kafka_client import BrokerError
from gateway.webhook_delivery import WebhookDelivery, encode_delivery
from gateway.webhook_schedule import PARTITIONS, partition_of, ready_ms
from schemas.errors import ErrorCode, InferenceError
from schemas.topics import Topics

_DAY_MS = 24 * 3600 * 1000
# A delivery is written anew for each wait, the longest is 18 hours; the rest is for when nobody delivers.
_RETRY_CONFIGS = {"retention.ms": str(14 * _DAY_MS), "cleanup.policy": "delete"}
_DEAD_CONFIGS = {"retention.ms": str(30 * _DAY_MS), "cleanup.policy": "delete"}


class WebhookQueue:
    """Writes both topics."""

    def __init__(self, *, broker: Broker, topics: Topics) -> None:
        self._broker = broker
        self.retry_topic = topics.webhooks_retry
        self.dead_topic = topics.webhooks_dead

    async def ensure(self, *, replication_factor: int) -> None:
        """Create the topics where they are missing. Raises BrokerError or TimeoutError."""
        await self._broker.ensure_topic(
            self.retry_topic, partitions=PARTITIONS, replication_factor=replication_factor, configs=_RETRY_CONFIGS
        )
        await self._broker.ensure_topic(
            self.dead_topic, partitions=1, replication_factor=replication_factor, configs=_DEAD_CONFIGS
        )

    async def wait(self, delivery: WebhookDelivery, *, now_ms: int) -> None:
        """Let a delivery wait until it is due, or until it has to move on. Durable then. Raises BrokerError."""
        partition = partition_of(delivery.due_ms - now_ms)
        ready = ready_ms(partition, now_ms=now_ms, due_ms=delivery.due_ms)
        waiting = msgspec.structs.replace(delivery, ready_ms=ready)
        await self._broker.append(self.retry_topic, None, encode_delivery(waiting), partition=partition)

    async def put(self, delivery: WebhookDelivery) -> None:
        """Let a delivery be attempted now; for callers who can be told. Raises InferenceError(UNAVAILABLE)."""
        try:
            await self.wait(delivery, now_ms=delivery.due_ms)
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"Kafka did not take the delivery: {cause!r}", remedy="try again in a moment"
            ) from cause

    async def bury(self, delivery: WebhookDelivery) -> None:
        """Make a delivery a dead letter. Durable then. Raises BrokerError."""
        await self._broker.append(self.dead_topic, None, encode_delivery(delivery))
