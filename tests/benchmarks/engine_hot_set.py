"""The hot set: 200 models of 1 MB, most requests to 40 of them, in a worker with memory for 50 and one for all.

Both are offered the same: a fixed sequence of requests, 8,192 of them outstanding. The models are real ONNX files of
1 MB each (a table that rows are looked up in). Requests and answers go over Kafka, without a gateway. The rate is that
of answers while there is more to send, and once as many requests wait for cold models as always will; every request
must be answered with success in the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from onnx import TensorProto, helper, numpy_helper

from schemas.kafka_connection import KafkaConnection
from schemas.record import Envelope, ReplyTo, encode_request_record
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from schemas.topics import Topics
from tests.benchmarks.bench import Bench
from tests.benchmarks.stack import BenchmarkError, Stack
from workers.topics import TopicAdmin

_MODELS = 200
_HOT = 40
_ROOM = 50
_HOT_SHARE = 0.9
_OUTSTANDING = 8192
_REQUESTS = 120_000
_WARM_SHARE = 0.4  # of the requests, until as many wait for cold models as always will
_TABLE_ROWS = 65_536  # of 4 floats: 1 MiB
_SEED = 4
_QUIET_MS = 60_000
_CONFIG = 'backend: "onnxruntime" max_batch_size: 64 dynamic_batching { }'


def measure(bench: Bench) -> None:
    """hot_set_rate, all_resident_rate."""
    names = [f"m{number:03}" for number in range(_MODELS)]
    stack = bench.stack("bench-hot", dict.fromkeys(names, _CONFIG))
    _write_models(stack.repository, names)
    requests = _sequence(bench.rows(_REQUESTS))
    with stack.worker(partitions="1") as worker:
        worker.await_answer("/health/ready")
        topics = Topics(stack.prefix)
        kafka = KafkaConnection(bootstrap=stack.bootstrap)
        admin = TopicAdmin(kafka=kafka, topics=topics, partitions=1, replication_factor=1)
        admin.ensure(topics.replies, partitions=1)
        uvloop.run(_answered(stack, names, list(range(_MODELS))))
        budget_bytes = int(worker.metric("tidegate_model_memory_bytes", device="cpu") * _ROOM / _MODELS)

    def one_round() -> dict[str, float]:
        return {
            "all_resident_rate": _rate(stack, names, requests, budget_bytes=0),
            "hot_set_rate": _rate(stack, names, requests, budget_bytes=budget_bytes),
        }

    bench.repeat(one_round)


def _rate(stack: Stack, names: Sequence[str], requests: Sequence[int], *, budget_bytes: int) -> float:
    """Requests answered per second, by a worker that has had each model once."""
    with stack.worker(partitions="1", model_memory_bytes=str(budget_bytes)) as worker:
        worker.await_answer("/health/ready")
        uvloop.run(_answered(stack, names, list(range(_MODELS))))
        rate = uvloop.run(_answered(stack, names, requests))
        evictions = worker.metric("tidegate_model_evictions_total")
        if bool(evictions) != bool(budget_bytes):
            raise BenchmarkError(f"{evictions:g} models were evicted with memory for {budget_bytes} bytes")
    return rate


async def _answered(stack: Stack, names: Sequence[str], requests: Sequence[int]) -> float:
    """Send requests for these models, by number, and wait for all answers; answers per second as said above."""
    topics = Topics(stack.prefix)
    reply_to = ReplyTo(topics.replies, 0)
    row = InferenceRequest((tensor_from_list("INPUT0", "INT64", (1, 1), [7]),))
    place = TopicPartition(topics.replies, 0)
    async with (
        AIOKafkaProducer(bootstrap_servers=stack.bootstrap) as to,
        AIOKafkaConsumer(bootstrap_servers=stack.bootstrap) as of,
    ):
        of.assign([place])
        await of.seek_to_end(place)
        await of.position(place)
        sent = answered = 0
        moments: list[tuple[int, float]] = []
        while answered < len(requests):
            for number in requests[sent : answered + _OUTSTANDING]:
                envelope = Envelope(f"r{sent}", source="/benchmarks", reply_to=reply_to)
                value, headers = encode_request_record(row, envelope, now_ms=time.time_ns() // 1_000_000)
                await to.send(topics.infer(names[number]), value, partition=0, headers=headers)
                sent += 1
            got = await of.getmany(timeout_ms=_QUIET_MS, max_records=_OUTSTANDING)
            records = [record for each in got.values() for record in each]
            if not records:
                raise BenchmarkError(f"after {answered} of {sent} answers none came for {_QUIET_MS} ms")
            if failed := [record for record in records if dict(record.headers)["tidegate-state"] != b"succeeded"]:
                raise BenchmarkError(f"a request failed: {bytes(failed[0].value)!r}")
            answered += len(records)
            if _WARM_SHARE * len(requests) <= sent < len(requests):
                moments.append((answered, time.perf_counter()))
    if len(moments) < 2:
        return 0.0
    return (moments[-1][0] - moments[0][0]) / (moments[-1][1] - moments[0][1])


def _sequence(count: int) -> list[int]:
    """The models that are asked for, one after the other; the same in every run."""
    chance = random.Random(_SEED)
    return [
        chance.randrange(_HOT) if chance.random() < _HOT_SHARE else chance.randrange(_HOT, _MODELS)
        for _ in range(count)
    ]


def _write_models(repository: Path, names: Sequence[str]) -> None:
    for number, name in enumerate(names):
        table = np.full((_TABLE_ROWS, 4), number, np.float32)
        graph = helper.make_graph(
            [helper.make_node("Gather", ["TABLE", "INPUT0"], ["OUTPUT0"])],
            "table",
            [helper.make_tensor_value_info("INPUT0", TensorProto.INT64, ["batch", 1])],
            [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["batch", 1, 4])],
            initializer=[numpy_helper.from_array(table, "TABLE")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, repository / name / "1" / "model.onnx")
