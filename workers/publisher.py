"""Publisher: records out, durable before anyone is told. One of three files that know a Kafka client.

Each destination partition has an outbox: one batch of records is under way, the next one collects meanwhile. A failed
batch is sent again until it is durable or the publisher closes; a repeat is the same answer under the same id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import OffsetAndMetadata

from schemas.errors import ErrorCode, InferenceError
from schemas.kafka_connection import KafkaConnection
from schemas.progress import Progress

log = structlog.get_logger()

Headers = list[tuple[str, bytes]]

_BATCH_BYTES = 900_000  # below the broker's default of message.max.bytes
_FATAL = (OutOfOrderSequenceNumber, ProducerFenced)
_RETRY_S = 0.5  # the client itself has retried for its request timeout by then


class _FileToken(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka publishes no types
    """The token of a file, read anew for each connection."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka

    async def token(self) -> str:
        """The token. Raises InferenceError."""
        return await asyncio.to_thread(self._kafka.token)


def client_options(kafka: KafkaConnection) -> dict[str, Any]:
    """What each client of aiokafka takes to connect. Raises InferenceError when a certificate cannot be used."""
    options = kafka.options()
    if kafka.has_token:
        options["sasl_oauth_token_provider"] = _FileToken(kafka)
    return options


@dataclass(slots=True, eq=False)
class Publication:
    """One record on its way. `on_durable` is called once, when the broker has acknowledged it."""

    topic: str
    partition: int
    value: bytes | None
    headers: Headers
    on_durable: Callable[[], None]
    key: bytes | None = None


class Publisher:
    """The producer of a worker: idempotent, acks=all, no linger."""

    def __init__(self, *, kafka: KafkaConnection, tasks: asyncio.TaskGroup) -> None:
        """`tasks`: where outboxes run; a bug in one ends the group, since answers must not silently stay."""
        self._kafka = kafka
        self._tasks = tasks
        self._producer: AIOKafkaProducer | None = None
        self._outboxes: dict[tuple[str, int], _Outbox] = {}

    async def open(self) -> None:
        """Connect. Raises InferenceError(UNAVAILABLE) if no broker answers."""
        self._producer = AIOKafkaProducer(
            **client_options(self._kafka),
            enable_idempotence=True,
            acks="all",
            max_batch_size=_BATCH_BYTES,
            max_request_size=4 * _BATCH_BYTES,
            metadata_max_age_ms=10_000,
        )
        try:
            await self._producer.start()
        except KafkaError as cause:
            await self._producer.stop()
            raise InferenceError(ErrorCode.UNAVAILABLE, f"no broker at {self._kafka.bootstrap}: {cause}") from cause

    async def close(self) -> None:
        """Stop. What is not durable by now is dropped: `flush` comes before."""
        for outbox in self._outboxes.values():
            outbox.cancel()
        if self._producer is not None:
            await self._producer.stop()

    async def partition_count(self, topic: str) -> int:
        """Number of partitions of a topic; 0 when no broker has told it within the client's request timeout, 40 s."""
        try:
            return len(await self._open_producer().partitions_for(topic))
        except KafkaError as error:
            log.warning("count_partitions_failed", topic=topic, error=repr(error))
            return 0

    async def append(self, topic: str, key: bytes, value: bytes | None) -> int:
        """Write one record now, for what is rare; returns its time by the broker's clock in milliseconds.

        Raises InferenceError(UNAVAILABLE).
        """
        try:
            metadata = await self._open_producer().send_and_wait(topic, value, key=key)
        except KafkaError as cause:
            raise InferenceError(ErrorCode.UNAVAILABLE, f"cannot write to {topic!r}: {cause}") from cause
        return int(metadata.timestamp)

    def publish(self, publication: Publication) -> None:
        """Queue a record; never blocks. Records of one partition keep their order."""
        key = (publication.topic, publication.partition)
        outbox = self._outboxes.get(key)
        if outbox is None:
            outbox = self._outboxes[key] = _Outbox(self._open_producer(), *key)
        outbox.put(publication, self._tasks)

    async def flush(self) -> None:
        """Wait until everything queued so far is durable. Cancel-safe."""
        await asyncio.gather(*(outbox.idle.wait() for outbox in self._outboxes.values()))

    def _open_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            raise RuntimeError("open() comes before this")
        return self._producer


class _Outbox:
    """The queue of one destination partition and the task that empties it while there is something in it."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partition: int) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._queue: deque[Publication] = deque()
        self._task: asyncio.Task[None] | None = None
        self.idle = asyncio.Event()
        self.idle.set()

    def put(self, publication: Publication, tasks: asyncio.TaskGroup) -> None:
        self._queue.append(publication)
        if self.idle.is_set():
            self.idle.clear()
            self._task = tasks.create_task(self._run(), name=f"outbox {self._topic}/{self._partition}")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._queue:
            await self._send(self._queue)
        self.idle.set()

    async def _send(self, queue: deque[Publication]) -> None:
        batch = self._producer.create_batch()
        sent = _fill(batch, queue)
        try:
            durable = await self._producer.send_batch(batch, self._topic, partition=self._partition)
            await durable
        except KafkaError as error:
            if isinstance(error, _FATAL) or type(error) is KafkaError:
                raise  # this producer is dead; a new process runs again what was not acknowledged
            log.warning("publish_batch_failed", topic=self._topic, error=repr(error))
            queue.extendleft(reversed(sent))
            await asyncio.sleep(_RETRY_S)
            return
        for item in sent:
            item.on_durable()


def _fill(batch: BatchBuilder, queue: deque[Publication]) -> list[Publication]:
    """Move publications from the front of the queue into the batch until it is full; the first one always fits."""
    moved: list[Publication] = []
    while queue:
        item = queue[0]
        if batch.append(timestamp=None, key=item.key, value=item.value, headers=item.headers) is None:
            break
        moved.append(queue.popleft())
    return moved


class TransactionalPublisher:
    """Records out together with the offsets of what they were made from: all of them, or none.

    A second publisher with the same `transactional_id` fences the first one off.
    """

    def __init__(self, *, kafka: KafkaConnection, transactional_id: str) -> None:
        self._kafka = kafka
        self._transactional_id = transactional_id
        self._producer: AIOKafkaProducer | None = None

    async def open(self) -> None:
        """Connect and end what a former publisher of this id left open. Raises InferenceError(UNAVAILABLE)."""
        self._producer = AIOKafkaProducer(
            **client_options(self._kafka),
            transactional_id=self._transactional_id,
            acks="all",
            max_batch_size=_BATCH_BYTES,
            max_request_size=4 * _BATCH_BYTES,
        )
        try:
            await self._producer.start()
        except KafkaError as cause:
            await self._producer.stop()
            raise InferenceError(ErrorCode.UNAVAILABLE, f"no broker at {self._kafka.bootstrap}: {cause}") from cause

    async def close(self) -> None:
        """Stop. A transaction that is open is aborted by the broker."""
        if self._producer is not None:
            await self._producer.stop()

    async def commit(
        self, publications: Iterable[Publication], offsets: Mapping[tuple[str, int], Progress], *, group: str
    ) -> None:
        """One transaction: the records, and the group's progress on their sources.

        Raises InferenceError(UNAVAILABLE); then nothing of it is visible to who reads committed records, unless the
        commit itself went unanswered.
        """
        assert self._producer is not None
        queues: dict[tuple[str, int], deque[Publication]] = {}
        for publication in publications:
            queues.setdefault((publication.topic, publication.partition), deque()).append(publication)
        commits = {
            TopicPartition(*key): OffsetAndMetadata(progress.committed, progress.encode())
            for key, progress in offsets.items()
        }
        try:
            async with self._producer.transaction():
                await asyncio.gather(*(self._send_all(*key, queue) for key, queue in queues.items()))
                await self._producer.send_offsets_to_transaction(commits, group)
        except KafkaError as cause:
            raise InferenceError(ErrorCode.UNAVAILABLE, f"a checkpoint failed: {cause!r}") from cause

    async def _send_all(self, topic: str, partition: int, queue: deque[Publication]) -> None:
        assert self._producer is not None
        sent = []
        while queue:
            batch = self._producer.create_batch()
            _fill(batch, queue)
            sent.append(await self._producer.send_batch(batch, topic, partition=partition))
        await asyncio.gather(*sent)
