"""WebhookMetrics: what the delivery of webhooks tells Prometheus. Names and units only."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class WebhookMetrics:
    """The families, in the registry of the process that delivers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.deliveries = Counter(
            "tidegate_webhook_deliveries",
            "Webhooks that have come to an end: delivered, gone (410), refused (the URL), exhausted (all attempts "
            "failed), lost (the outcome or the model is gone).",
            ["result"],
            registry=registry,
        )
        self.attempts = Counter(
            "tidegate_webhook_attempts",
            "Attempts by what came of them: 2xx, 3xx, 4xx, 5xx, timeout, connection, error (ours); and attempts that "
            "were not made: refused (the URL), lost (the outcome), down (the endpoint failed several times in a row).",
            ["result"],
            registry=registry,
        )
        self.attempt_seconds = Histogram(
            "tidegate_webhook_attempt_seconds",
            "Time of one attempt.",
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30),
            registry=registry,
        )
        self.postponed = Counter(
            "tidegate_webhook_postponed", "Deliveries put off because their endpoint was busy.", registry=registry
        )
        self.repeats = Counter(
            "tidegate_webhook_repeats", "Records of deliveries that had gone on already.", registry=registry
        )
        self.undecodable = Counter(
            "tidegate_webhook_undecodable",
            "Records that could not be read as results or deliveries.",
            registry=registry,
        )
        self.pending = Gauge(
            "tidegate_webhook_pending",
            "Deliveries that wait for their next attempt, in the partitions that this process holds.",
            registry=registry,
        )
        self._oldest = Gauge(
            "tidegate_webhook_oldest_seconds",
            "Age of the oldest delivery among those that this process attempts or has next in a partition.",
            registry=registry,
        )
        self._down = Gauge(
            "tidegate_webhook_endpoints_down", "Endpoints that are not asked for a while.", registry=registry
        )

    def watch(self, *, oldest_s: Callable[[], float], down: Callable[[], int]) -> None:
        """Read these from here when asked."""
        self._oldest.set_function(oldest_s)
        self._down.set_function(down)
