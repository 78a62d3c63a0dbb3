"""EchoWorker: a worker that answers each request with its own inputs, for tests and measurements of the gateway.

It knows the contract and Kafka, nothing of real workers. As a program it serves one model until it is killed:
`python -m tests.integration.echo_worker BOOTSTRAP PREFIX MODEL`.
"""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec
import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import OffsetAndMetadata

from schemas.control import (
    LoadProgress,
    ModelAnnouncement,
    announcement_key,
    encode_announcement,
    encode_load_progress,
    loading_key,
)
from schemas.errors import InferenceError
from schemas.model import ModelMetadata, TensorSpec
from schemas.outcome import JobState, Outcome, outcome_headers, state_of
from schemas.progress import Progress
from schemas.record import Envelope, Origin, decode_envelope, decode_value
from schemas.request import InferenceRequest
from schemas.response import InferenceResponse
from schemas.topics import Topics
from schemas.v2 import encode_response
from schemas.worker_report import Duration, ModelStatistics, WorkerReport, encode_report, report_key

PARTITIONS = 2
EPOCH = 7


class Taken(msgspec.Struct, frozen=True):
    """A request that the worker has read."""

    envelope: Envelope
    origin: Origin
    value: bytes
    header_length: int | None
    created_ms: int


class EchoWorker:
    """Serves one model of pool `<model>-pool`. Enter it, `announce`, then `take` and `reply`."""

    def __init__(self, *, bootstrap: str, prefix: str, model: str, epoch: int = EPOCH) -> None:
        self.bootstrap = bootstrap
        self.topics = Topics(prefix)
        self.model = model
        self.pool = f"{model}-pool"
        self.topic = self.topics.infer(model)
        rows = TensorSpec("x", "FP32", (4,))
        self.announcement = ModelAnnouncement(
            ModelMetadata(model, ("1", "2"), "echo", 8, (rows,), (rows,)),
            self.pool,
            self.topic,
            epoch,
            PARTITIONS,
        )
        self._stack = AsyncExitStack()
        self._read: list[Any] = []
        self._lives: dict[str, int] = {}
        self.consumer: Any = None
        self.producer: Any = None

    async def __aenter__(self) -> Self:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        configs = {"message.timestamp.type": "LogAppendTime"}
        names = (self.topic, self.topics.results(self.model))
        await admin.create_topics([NewTopic(name, PARTITIONS, 1, topic_configs=configs) for name in names])
        await admin.close()
        self.producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, acks="all")
        await self.producer.start()
        self._stack.push_async_callback(self.producer.stop)
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.topics.group(self.pool),
            enable_auto_commit=False,
            fetch_max_wait_ms=100,  # other requests wait behind a fetch that waits
        )
        places = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
        self.consumer.assign(places)
        await self.consumer.start()
        self._stack.push_async_callback(self.consumer.stop)
        await self.consumer.seek_to_beginning(*places)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def announce(self) -> None:
        """Tell the gateways of the model."""
        await self.producer.send_and_wait(
            self.topics.control, encode_announcement(self.announcement), key=announcement_key(self.model)
        )

    async def tell_loading(self, fetched_ratio: float | None) -> None:
        """Tell the gateways how far the model is being loaded; None: it is not, any more."""
        now_ms = time.time_ns() // 1_000_000
        value = None if fetched_ratio is None else encode_load_progress(LoadProgress("2", fetched_ratio, now_ms))
        await self.producer.send_and_wait(self.topics.control, value, key=loading_key(self.model))

    async def report(self, *, answered: int = 0, state: str = "ready", ago_ms: int = 0, worker: str = "echo") -> None:
        """Tell the gateways that a worker of the pool lives, and what it has done; `ago_ms`: as of then."""
        at_ms = time.time_ns() // 1_000_000 - ago_ms
        model = ModelStatistics(self.model, "2", state, success=Duration(answered))
        started_ms = self._lives.setdefault(worker, at_ms)
        report = WorkerReport(self.pool, "serving", started_ms, at_ms, models=(model,))
        await self.producer.send_and_wait(
            self.topics.control, encode_report(report), key=report_key(f"{self.pool}-{worker}")
        )

    async def delete_topic(self) -> None:
        """Delete the request topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        await admin.delete_topics([self.topic])
        await admin.close()

    async def take(self) -> Taken:
        """The next request."""
        return _taken(await self.consumer.getone())

    async def reply(self, taken: Taken, *, error: InferenceError | None = None, claim: str = "") -> Outcome:
        """Answer by a reply record; with `claim` its value is said to be in the store at that key."""
        outcome = self.outcome(taken, error=error)
        headers = outcome_headers(outcome, b"/echo")
        value = outcome.value
        if claim:
            headers.append(("tidegate-claim", claim.encode()))
            value = b""
        assert taken.envelope.reply_to is not None
        to = taken.envelope.reply_to
        await self.producer.send_and_wait(to.topic, value, partition=to.partition, headers=headers)
        return outcome

    def outcome(self, taken: Taken, *, error: InferenceError | None = None) -> Outcome:
        """The echo of a request, or this error."""
        now_ms = time.time_ns() // 1_000_000
        if error is None:
            request = decode_value(taken.value, taken.header_length, taken.origin)
            value, length = encode_response(self._echo(request, taken.envelope))
            state = JobState.SUCCEEDED
        else:
            value, length, state = msgspec.json.encode(error.detail()), None, state_of(error)
        envelope = taken.envelope
        return Outcome(
            envelope.id,
            state,
            taken.origin,
            value,
            length,
            taken.created_ms,
            now_ms,
            now_ms,
            envelope.traceparent,
            "",
            envelope.tenant,
            envelope.webhook,
        )

    async def commit(self, partition: int, progress: Progress) -> None:
        """Commit this progress, as a pool does."""
        place = TopicPartition(self.topic, partition)
        await self.consumer.commit({place: OffsetAndMetadata(progress.committed, progress.encode())})

    async def serve(self) -> None:
        """Answer everything at once, for ever; commits nothing."""
        while True:
            got = await self.consumer.getmany(timeout_ms=1000)
            for records in got.values():
                for record in records:
                    await self._serve_one(_taken(record))

    async def _serve_one(self, taken: Taken) -> None:
        outcome = self.outcome(taken)
        to = taken.envelope.reply_to
        if to is not None:
            await self.producer.send(
                to.topic, outcome.value, partition=to.partition, headers=outcome_headers(outcome, b"/echo")
            )

    def _echo(self, request: InferenceRequest, envelope: Envelope) -> InferenceResponse:
        return InferenceResponse(
            self.model, envelope.model_version or "2", request.inputs, request.id, {"queue_us": 1, "batch_rows": 1}
        )


def _taken(record: Any) -> Taken:
    origin = Origin(record.topic, record.partition, record.offset)
    envelope, header_length = decode_envelope(record.headers, origin)
    return Taken(envelope, origin, record.value, header_length, record.timestamp)


async def _main(bootstrap: str, prefix: str, model: str) -> None:
    async with EchoWorker(bootstrap=bootstrap, prefix=prefix, model=model) as worker:
        await worker.announce()
        print("serving", flush=True)
        await worker.serve()


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
