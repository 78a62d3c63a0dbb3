"""The simulated device: how near to its own limit it is kept, over HTTP and from a filled topic."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import uvloop
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.topics import Topics
from store import open_store
from tests.benchmarks.bench import Bench
from tests.benchmarks.load import Load, post
from tests.benchmarks.rows import DEVICE_BATCH_ROWS, DEVICE_CONFIG, PARTITIONS, fill, row_body
from tests.benchmarks.stack import BenchmarkError, Program, Stack
from workers.backend import open_backend
from workers.repository import ModelRepository

_MODEL = "device"
_PATH = f"/v2/models/{_MODEL}/infer"
_TOPIC_ROWS = 20_000
_QUIET_MS = 60_000
_MODELS = {_MODEL: DEVICE_CONFIG}


def measure(bench: Bench) -> None:
    """device_*."""
    topic_stack = bench.stack("bench-topic", _MODELS)
    topic_stack.provision()
    with bench.stack("bench-device", _MODELS).both() as (gateway, worker):

        def one_round() -> dict[str, float]:
            few = {f"device_http_c{count}_rows_s": _post(gateway, count, bench.run_s).rps for count in (1, 16)}
            limit = _limit_rows_s(topic_stack.repository, run_s=bench.run_s)
            before = _batches(worker)
            many = _post(gateway, 64, bench.run_s)
            rows, batches = (after - earlier for after, earlier in zip(_batches(worker), before, strict=True))
            topic = _topic_rows_s(topic_stack, rows=bench.rows(_TOPIC_ROWS))
            return {
                "device_limit_rows_s": limit,
                **few,
                "device_http_c64_rows_s": many.rps,
                "device_http_c64_p50_ms": many.p50_ms,
                "device_topic_rows_s": topic,
                "device_batch_mean": rows / batches,
            }

        bench.repeat(one_round)


def _post(gateway: Program, outstanding: int, run_s: int) -> Load:
    return post(f"http://127.0.0.1:{gateway.port}{_PATH}", row_body(), outstanding=outstanding, run_s=run_s)


def _batches(worker: Program) -> tuple[float, float]:
    """Rows and batches that the worker has run so far."""
    rows = worker.metric("tidegate_batch_rows_sum", model=_MODEL)
    return rows, worker.metric("tidegate_batch_rows_count", model=_MODEL)


def _limit_rows_s(repository: Path, *, run_s: float) -> float:
    """The backend alone, in this process: one full batch after the other."""
    model = ModelRepository(open_store(str(repository)), cache=repository).read(_MODEL)
    backend = open_backend("device")
    backend.load(repository / _MODEL / "1", model.config)
    inputs = {"INPUT0": np.zeros((DEVICE_BATCH_ROWS, 16), np.float32)}
    batches = 0
    begun_s = time.perf_counter()
    while time.perf_counter() < begun_s + run_s:
        backend.infer(inputs, ("OUTPUT0",))
        batches += 1
    return batches * DEVICE_BATCH_ROWS / (time.perf_counter() - begun_s)


def _topic_rows_s(stack: Stack, *, rows: int) -> float:
    """Fill the request topic while no worker is there, start one, and read its results.

    The rate is that between the first result and the last one by the broker's clock, so that start and load of the
    model do not count. The first batch's rows were done by its first result.
    """
    topics = Topics(stack.prefix)
    begins = uvloop.run(_ends(stack.bootstrap, topics.results(_MODEL)))
    fill(stack.bootstrap, topics.infer(_MODEL), rows=rows)
    with stack.worker():
        first_ms, last_ms = uvloop.run(_read(stack.bootstrap, begins, rows))
    return (rows - DEVICE_BATCH_ROWS) / (last_ms - first_ms) * 1000


async def _ends(bootstrap: str, topic: str) -> dict[TopicPartition, int]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        ends: dict[TopicPartition, int] = await consumer.end_offsets(
            [TopicPartition(topic, number) for number in range(PARTITIONS)]
        )
        return ends


async def _read(bootstrap: str, begins: dict[TopicPartition, int], rows: int) -> tuple[int, int]:
    """Read so many results; when the broker appended the first and the last one, in milliseconds."""
    times_ms: list[int] = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(list(begins))
        for place, offset in begins.items():
            consumer.seek(place, offset)
        while len(times_ms) < rows:
            got = await consumer.getmany(timeout_ms=_QUIET_MS)
            if not got:
                raise BenchmarkError(f"after {len(times_ms)} of {rows} results none came for {_QUIET_MS} ms")
            times_ms += [record.timestamp for records in got.values() for record in records]
    return min(times_ms), max(times_ms)
