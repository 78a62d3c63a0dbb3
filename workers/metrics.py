"""What a worker counts. One place, so that every model is measured the same way."""

from __future__ import annotations

from prometheus_client import Counter, Enum, Gauge, Histogram

OUTCOMES = Counter("tidegate_outcomes", "Recorded outcomes.", ["topic", "state"])
BATCH_ROWS = Histogram(
    "tidegate_batch_rows", "Rows of a batch.", ["model", "version"], buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256)
)
QUEUE_SECONDS = Histogram(
    "tidegate_queue_seconds",
    "From a request's arrival at the broker until its batch was cut.",
    ["model", "version"],
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300),
)
INFER_SECONDS = Histogram(
    "tidegate_infer_seconds",
    "A batch in the backend.",
    ["model", "version"],
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
EXTRA_RUNS = Counter("tidegate_bisection_runs", "Runs of a backend to isolate a failing request.", ["model", "version"])
QUEUED_ROWS = Gauge("tidegate_queued_rows", "Rows read and waiting for a batch.", ["model", "version"])
MODEL_STATE = Enum(
    "tidegate_model_state",
    "State of a model here.",
    ["model", "version"],
    states=["cold", "fetching", "loading", "ready", "failed"],
)
LOAD_PROGRESS = Gauge("tidegate_model_fetched_ratio", "How much of a model's files is here.", ["model", "version"])
MODEL_BYTES = Gauge("tidegate_model_memory_bytes", "Memory that models hold or have reserved.", ["device"])
EVICTIONS = Counter("tidegate_model_evictions", "Models unloaded to make room.", ["model"])
MODEL_TAGS = Gauge("tidegate_model_tags", "1 for each of a model's metric_tags, to join on.", ["model", "tag", "value"])
ABANDONED = Counter("tidegate_abandoned_instances", "Instances given up inside an inference.", ["model"])
RETRIES = Counter("tidegate_retried_requests", "Requests run again after a passing failure.", ["model", "version"])
REFUSED = Counter("tidegate_refused_requests", "Requests refused in the queue.", ["model", "version", "reason"])
LOAD_SECONDS = Histogram(
    "tidegate_model_load_seconds",
    "From a model's first record until it was ready.",
    ["model"],
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600),
)
WORKER_STATE = Enum(
    "tidegate_worker_state", "State of this worker.", states=["starting", "serving", "draining", "stopped"]
)
