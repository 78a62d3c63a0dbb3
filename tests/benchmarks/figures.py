"""Figures: the name, unit and meaning of everything that is measured, and the targets. Knows no benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A bound on what is made of one or two figures: `name` itself, `name` / `over`, or `name` - `times` * `above`.

    `key` is what the result is called; of a figure alone, the figure's own name.
    """

    key: str
    name: str
    bound: float
    over: str = ""
    above: str = ""
    times: float = 1.0
    at_least: bool = True

    def value(self, figures: Mapping[str, float]) -> float | None:
        """What is bounded; None when it was not measured."""
        others = [name for name in (self.over, self.above) if name]
        if any(name not in figures for name in (self.name, *others)):
            return None
        if self.over:
            return figures[self.name] / figures[self.over]
        return figures[self.name] - (self.times * figures[self.above] if self.above else 0.0)

    def is_reached(self, value: float) -> bool:
        """Whether the bound is kept."""
        return value >= self.bound if self.at_least else value <= self.bound

    @property
    def told(self) -> str:
        """The bound in words."""
        return f"{'at least' if self.at_least else 'at most'} {self.bound:,g}"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The figures of one command, as they are shown: `meanings` by name, in the order of the table `title`.

    `name` is what BENCHMARKS.md marks their place with.
    """

    command: str
    name: str
    title: str
    meanings: Mapping[str, str]
    targets: Sequence[Target]

    def with_targets(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The figures and, under the targets' keys, what is made of them."""
        made = {target.key: value for target in self.targets if (value := target.value(figures)) is not None}
        return {**figures, **made}


_MEANINGS = {
    "floor_p50_ms": "bare aiokafka round trip through an echo process, 400 bytes, 1 outstanding: median",
    "floor_c64_rps": "the same with 64 outstanding: round trips per second",
    "bare_asgi_c64_rps": "the gateway's HTTP server and codec answering the request inline, 64 outstanding",
    "bare_asgi_cpu_us": "its processor time per request",
    "sync_p50_ms": "identity model through gateway, Kafka and worker, 1 outstanding: median",
    "sync_c64_rps": "the same with 64 outstanding: requests per second",
    "sync_c64_p50_ms": "the same: median",
    "sync_c64_p99_ms": "the same: 99th percentile",
    "gateway_cpu_us": "the gateway's processor time (user and system) per synchronous request at 64",
    "worker_cpu_us": "the worker's",
    "broker_cpu_us": "the broker's",
    "device_limit_rows_s": "a simulated device, 8 ms + 0.05 ms per row, batches of 32 back to back, nothing around it",
    "device_http_c1_rows_s": "the same device behind gateway, Kafka and worker (delay 5 ms), 1 outstanding",
    "device_http_c16_rows_s": "16 outstanding",
    "device_http_c64_rows_s": "64 outstanding",
    "device_http_c64_p50_ms": "64 outstanding: median",
    "device_topic_rows_s": "from a filled topic to the results topic, first result to last",
    "device_batch_mean": "rows of a batch with 64 outstanding",
    "score_floor_rows_s": "bare aiokafka loop that copies the rows' values to another topic",
    "score_rows_s": "`python -m workers score` over the same rows, identity model, transactions every second",
    "batcher_rows_s": "the pure Batcher: requests of one row in, batches of 32 out",
    "gateway_ready_s": "from the gateway's start to its first ready answer, its topics being there",
    "gateway_idle_mb": "its resident memory then, MB",
    "worker_ready_s": "from the worker's start to its first ready answer, its topics being there",
    "worker_idle_mb": "its resident memory then, one model in the repository and none loaded, MB",
}
_TARGETS = (
    Target("sync_p50_above_floor_ms", "sync_p50_ms", 2, above="floor_p50_ms", at_least=False),
    Target("sync_c64_of_bare", "sync_c64_rps", 0.35, over="bare_asgi_c64_rps"),
    Target("device_http_c64_of_limit", "device_http_c64_rows_s", 0.90, over="device_limit_rows_s"),
    Target("device_topic_of_limit", "device_topic_rows_s", 0.97, over="device_limit_rows_s"),
    Target("score_of_floor", "score_rows_s", 0.4, over="score_floor_rows_s"),
    Target("batcher_rows_s", "batcher_rows_s", 300_000),
    Target("gateway_idle_mb", "gateway_idle_mb", 90, at_least=False),
    Target("worker_idle_mb", "worker_idle_mb", 150, at_least=False),
    Target("gateway_ready_s", "gateway_ready_s", 1.5, at_least=False),
)

MAIN = Sheet(
    command="python -m tests.benchmarks",
    name="figures",
    title="Medians of three runs",
    meanings=_MEANINGS,
    targets=_TARGETS,
)
"""The main benchmarks."""
