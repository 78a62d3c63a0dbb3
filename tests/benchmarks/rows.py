"""The row that every benchmark sends: 16 floats; as an HTTP body, as a record, and topics full of it.

Knows the contract of schemas, and Kafka. The models are those of the device backend (workers/backends/device.py).
"""

from __future__ import annotations

import time

import msgspec
import uvloop
from aiokafka import AIOKafkaProducer

from schemas.kafka_connection import KafkaConnection
from schemas.record import Envelope, encode_request_record
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from schemas.topics import Topics
from tests.benchmarks.stack import BenchmarkError
from workers.topics import TopicAdmin

PARTITIONS = 8  # what gateway and worker create, too, unless told otherwise
_ROW = [round(0.37 * index - 3, 2) for index in range(16)]
_TENSORS = "data_type: TYPE_FP32 dims: [16]"
_CONFIG = f'backend: "device" input {{ name: "INPUT0" {_TENSORS} }} output {{ name: "OUTPUT0" {_TENSORS} }}'

IDENTITY_CONFIG = f"{_CONFIG} max_batch_size: 64 dynamic_batching {{ }}"
"""Takes no time."""

DEVICE_BATCH_ROWS = 32
DEVICE_CONFIG = (
    f"{_CONFIG} max_batch_size: {DEVICE_BATCH_ROWS} dynamic_batching {{ max_queue_delay_microseconds: 5000 }} "
    'parameters { key: "execute_base_ms" value { string_value: "8" } } '
    'parameters { key: "execute_row_ms" value { string_value: "0.05" } }'
)
"""Takes 8 ms + 0.05 ms per row."""


def row_body() -> str:
    """A request of one row as v2 JSON."""
    return msgspec.json.encode(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, len(_ROW)], "data": _ROW}]}
    ).decode()


def fill(bootstrap: str, topic: str, *, rows: int) -> None:
    """Append `rows` requests of one row, round the topic's partitions; the topic is made if it is missing."""
    kafka = KafkaConnection(bootstrap=bootstrap)
    admin = TopicAdmin(kafka=kafka, topics=Topics(), partitions=PARTITIONS, replication_factor=1)
    partitions = admin.ensure(topic, partitions=PARTITIONS)
    uvloop.run(_fill(bootstrap, topic, rows, partitions))


async def _fill(bootstrap: str, topic: str, rows: int, partitions: int) -> None:
    request = InferenceRequest((tensor_from_list("INPUT0", "FP32", (1, len(_ROW)), _ROW),))
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=1 << 18) as to:
        sent = []
        for index in range(rows):
            envelope = Envelope(f"row-{index}", source="/benchmarks")
            value, headers = encode_request_record(request, envelope, now_ms=time.time_ns() // 1_000_000)
            sent.append(await to.send(topic, value, partition=index % partitions, headers=headers))
        await to.flush()
    if failed := sum(1 for each in sent if each.exception() is not None):
        raise BenchmarkError(f"{failed} of {rows} rows could not be appended to {topic}")
