"""Metrics: what the gateway tells Prometheus. Names and units only; knows nothing of what it counts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Responses(Collector):
    """Answered inference requests of one protocol: how many by status, and how long they took.

    The library's own counters take locks, which cost more than all else here; the event loop is one thread.
    """

    def __init__(self, head: str, protocol: str) -> None:
        self._head = head
        self._protocol = protocol
        self._by_status: Tally[int] = Tally()
        self._by_bucket = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, status: int, seconds: float) -> None:
        """Count one."""
        self._by_status[status] += 1
        self._by_bucket[bisect_left(_BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """The families, for the registry."""
        what = f"Answered inference requests over {self._protocol}."
        responses = CounterMetricFamily(f"{self._head}_responses", what, labels=["status"])
        for status, count in self._by_status.items():
            responses.add_metric([str(status)], count)
        yield responses
        bounds = [*map(str, _BOUNDS_S), "+Inf"]
        yield HistogramMetricFamily(
            f"{self._head}_request_seconds",
            f"Time from an inference request's head to its answer over {self._protocol}.",
            buckets=list(zip(bounds, map(float, accumulate(self._by_bucket)), strict=True)),
            sum_value=self._sum_s,
        )


class Metrics:
    """The gateway's metrics in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.responses = Responses("tidegate_gateway", "HTTP")
        registry.register(self.responses)
        # By the HTTP status of the same meaning: the table of errors has one for each code, gRPC's are fewer.
        self.grpc_responses = Responses("tidegate_gateway_grpc", "gRPC")
        registry.register(self.grpc_responses)
        self._in_flight = Gauge("tidegate_gateway_in_flight", "Requests being waited for.", registry=registry)
        replies = Counter(
            "tidegate_gateway_replies",
            "Replies that no request waited for: late (kept), foreign (another gateway's), undecodable.",
            ["kind"],
            registry=registry,
        )
        self.replies_late = replies.labels("late")
        self.replies_foreign = replies.labels("foreign")
        self.replies_undecodable = replies.labels("undecodable")
        self.outcomes_kept = Counter(
            "tidegate_gateway_outcomes_kept", "Outcomes that the gateway put into the object store.", registry=registry
        )
        self.state = Gauge(
            "tidegate_gateway_state", "1 for the state that the gateway is in.", ["state"], registry=registry
        )
        self.pool_backlog = Gauge(
            "tidegate_pool_backlog",
            "Requests that a pool has not answered; absent while it cannot be read.",
            ["pool"],
            registry=registry,
        )

    def watch_in_flight(self, read: Callable[[], int]) -> None:
        """Read the number of requests in flight from here when asked."""
        self._in_flight.set_function(read)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
