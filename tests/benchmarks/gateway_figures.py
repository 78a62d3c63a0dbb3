"""Figures of the gateway's benchmarks: their meaning, and what must be reached. Knows no benchmark."""

from __future__ import annotations

from tests.benchmarks.figures import Sheet, Target

GATEWAY = Sheet(
    command="python -m tests.benchmarks.gateway",
    name="gateway figures",
    title="Medians of three runs",
    meanings={
        "bare_asgi_c64_rps": "the gateway's HTTP server and codec answering the request inline, 64 outstanding",
        "bare_asgi_cpu_us": "its processor time per request",
        "sync_c64_rps": "identity model through gateway, Kafka and worker, 64 outstanding: requests per second",
        "gateway_cpu_us": "the gateway's processor time per such request",
        "submit_c64_rps": "jobs submitted per second, 64 outstanding: each 202 follows the broker's acknowledgement",
        "submit_cpu_us": "the gateway's processor time per job",
        "grpc_c64_rps": "the same identity model by gRPC, 64 outstanding: requests per second",
        "grpc_cpu_us": "the gateway's processor time per gRPC request",
        "waiting_10k_mb": "resident memory of a gateway with 10,000 callers waiting over HTTP, MB",
        "waiting_idle_mb": "the same gateway's before they came, MB",
        "status_p50_ms": "a job's document with 1 million jobs queued, 4 outstanding: median",
        "status_p99_ms": "the same: 99th percentile",
        "status_rps": "the same: per second",
        "fuzz_cases": "requests made up: from the OpenAPI document, and by damaging v2 binary bodies and gRPC requests",
        "fuzz_faults": "of those: answered by an internal error, not answered, or left behind in the gateway",
        "fuzz_growth_mb": "what the gateway's memory grew by in the second half of them, MB",
    },
    targets=(
        Target("gateway_cpu_of_bare", "gateway_cpu_us", 3.5, over="bare_asgi_cpu_us", at_least=False),
        Target("waiting_10k_mb", "waiting_10k_mb", 300, at_least=False),
        Target("submit_c64_of_bare", "submit_c64_rps", 0.3, over="bare_asgi_c64_rps"),
        Target("status_p99_ms", "status_p99_ms", 10, at_least=False),
        Target("grpc_c64_of_sync", "grpc_c64_rps", 0.6, over="sync_c64_rps"),
        Target("fuzz_cases", "fuzz_cases", 100_000),
        Target("fuzz_faults", "fuzz_faults", 0, at_least=False),
    ),
)
