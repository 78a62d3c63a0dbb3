"""Offline: the demo's topics, filled with requests, and read back when `python -m workers score` has answered them.

Must not know HTTP. Topics and records are all that a producer or a consumer of tidegate needs to know.
"""

import asyncio
import time
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka.admin import KafkaAdminClient

from local.errors import LocalStackError
from local.magika import OUTPUT_NAME
from local.verdict import Verdict, ask
from schemas.outcome import decode_outcome_record
from schemas.record import Envelope, encode_request_record
from schemas.v2 import decode_response

_PARTITIONS = 2
_READ_TIMEOUT_S = 30.0


class AnswersMissingError(LocalStackError):
    """The output topic does not hold one good answer for each request."""


def create_topic(bootstrap: str, topic: str) -> None:
    """Create a topic. Blocks."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics({topic: {"num_partitions": _PARTITIONS, "replication_factor": 1}})
        admin.wait_for_topics([topic])
    finally:
        admin.close()


def delete_topics(bootstrap: str, prefix: str) -> None:
    """Delete all topics whose names begin so. Blocks."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_topics([topic for topic in admin.list_topics() if topic.startswith(prefix)])
    finally:
        admin.close()


async def produce_rows(bootstrap: str, topic: str, rows: Mapping[str, npt.NDArray[np.int32]]) -> None:
    """Append one request per row to a topic; its id is the row's name. Returns when all are durable."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        now_ms = time.time_ns() // 1_000_000
        sent = []
        for name, row in rows.items():
            value, headers = encode_request_record(ask(row), Envelope(name, "/tidegate/demo"), now_ms=now_ms)
            sent.append(await producer.send(topic, value, headers=headers))
        await asyncio.gather(*sent)


async def read_verdicts(bootstrap: str, topic: str, *, count: int) -> dict[str, Verdict]:
    """Read the committed answers of a topic: verdicts by the request's id.

    Raises AnswersMissingError when `count` answers are not there, one is an error, or one is there twice.
    """
    verdicts: dict[str, Verdict] = {}
    consumer = AIOKafkaConsumer(  # without a group: all partitions are its own
        topic, bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with consumer:
        deadline_s = time.monotonic() + _READ_TIMEOUT_S
        while len(verdicts) < count:
            left_ms = int(1000 * (deadline_s - time.monotonic()))
            if left_ms <= 0:
                raise AnswersMissingError(f"{topic} holds {len(verdicts)} answers of {count}")
            for records in (await consumer.getmany(timeout_ms=left_ms)).values():
                for record in records:
                    _add(verdicts, record.headers, record.value)
    return verdicts


def _add(verdicts: dict[str, Verdict], headers: list[tuple[str, bytes]], value: bytes) -> None:
    outcome = decode_outcome_record(headers, value)
    if error := outcome.error():
        raise AnswersMissingError(f"{outcome.id} was answered by an error: {error.message}")
    if outcome.id in verdicts:
        raise AnswersMissingError(f"{outcome.id} was answered twice")
    response = decode_response(outcome.value, outcome.header_length)
    scores = next(tensor.data for tensor in response.outputs if tensor.name == OUTPUT_NAME)
    verdicts[outcome.id] = Verdict.of(np.frombuffer(scores, dtype=np.float32), response.parameters)
