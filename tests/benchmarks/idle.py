"""Idle processes: how soon they are ready after their start, and how much memory they hold then."""

from __future__ import annotations

from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import IDENTITY_CONFIG


def measure(bench: Bench) -> None:
    """*_idle_mb and *_ready_s: each process alone, its topics there, no request sent, so no model loaded."""
    stack = bench.stack("bench-idle", {"identity": IDENTITY_CONFIG})

    def one_round() -> dict[str, float]:
        with stack.worker() as worker:
            worker_ready_s = worker.await_answer("/health/ready")
            worker_idle_mb = worker.resident_mb()
        with stack.gateway() as gateway:
            gateway_ready_s = gateway.await_answer("/v2/health/ready")
            gateway_idle_mb = gateway.resident_mb()
        return {
            "gateway_ready_s": gateway_ready_s,
            "gateway_idle_mb": gateway_idle_mb,
            "worker_ready_s": worker_ready_s,
            "worker_idle_mb": worker_idle_mb,
        }

    bench.repeat(one_round)
