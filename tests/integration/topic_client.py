"""TopicClient: produces requests and collects outcomes by id, as anyone who lives on topics would.

Knows the contract of schemas and Kafka, and of workers only how topics are made. Every wait is bounded.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, closing
from typing import Any, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kafka import TopicPartition as AdminPartition
from kafka.admin import KafkaAdminClient

from schemas.kafka_connection import KafkaConnection
from schemas.outcome import Outcome, decode_outcome_record, outcome_key
from schemas.progress import Progress, decode_progress
from schemas.record import Envelope, Origin, ReplyTo, encode_request_record
from schemas.request import InferenceRequest
from schemas.response import InferenceResponse
from schemas.tensor import Tensor, tensor_from_list
from schemas.topics import Topics
from schemas.v2 import decode_response
from workers.topics import RequestTopic, TopicAdmin

_PATIENCE_S = 40.0
_ids = itertools.count()

Headers = list[tuple[str, bytes]]


def rows_request(*rows: Sequence[float], name: str = "INPUT0") -> InferenceRequest:
    """A request of FP32 rows."""
    return InferenceRequest((fp32(name, [list(row) for row in rows]),))


def fp32(name: str, rows: list[list[float]]) -> Tensor:
    """An FP32 tensor of rows."""
    return tensor_from_list(name, "FP32", (len(rows), len(rows[0])), [value for row in rows for value in row])


def response_of(outcome: Outcome) -> InferenceResponse:
    """The response of an outcome that succeeded."""
    assert outcome.error() is None, outcome.error()
    return decode_response(outcome.value, outcome.header_length)


def values_of(outcome: Outcome, name: str = "OUTPUT0") -> list[Any]:
    """The elements of one output."""
    return next(tensor for tensor in response_of(outcome).outputs if tensor.name == name).to_list()


class Read:
    """What was read of one topic so far, by `ce_id` (dead letters: by origin), in order."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self.records: list[Any] = []
        self.outcomes: dict[str, list[Outcome]] = defaultdict(list)

    async def until(self, done: Callable[[Read], bool], *, within_s: float = _PATIENCE_S) -> Self:
        """Read on until `done`, at most so long."""
        try:
            async with asyncio.timeout(within_s):
                while not done(self):
                    self._note(await self._consumer.getmany(timeout_ms=200))
        except TimeoutError as late:
            raise AssertionError(f"after {within_s:g} s there are only {self.told()}") from late
        return self

    async def answered(self, ids: Iterable[str], *, within_s: float = _PATIENCE_S) -> dict[str, Outcome]:
        """Wait for an outcome of each id; the first of each."""
        wanted = set(ids)
        await self.until(lambda read: wanted <= read.outcomes.keys(), within_s=within_s)
        return {id_: self.outcomes[id_][0] for id_ in wanted}

    async def everything(self) -> Self:
        """Read up to the present end of the topic."""
        ends = await self._consumer.end_offsets(self._consumer.assignment())
        async with asyncio.timeout(_PATIENCE_S):
            for key, end in ends.items():
                while await self._consumer.position(key) < end:
                    self._note(await self._consumer.getmany(timeout_ms=200))
        return self

    def told(self) -> dict[str, list[str]]:
        """Ids and states, to be shown."""
        return {id_: [outcome.state.value for outcome in outcomes] for id_, outcomes in self.outcomes.items()}

    def _note(self, got: dict[TopicPartition, list[Any]]) -> None:
        for records in got.values():
            for record in records:
                self.records.append(record)
                headers = dict(record.headers)
                if "tidegate-state" in headers:
                    outcome = decode_outcome_record(record.headers, record.value)
                    self.outcomes[outcome.id].append(outcome)


class TopicClient:
    """Topics are made by the first worker, or by `provision`."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self.topics = Topics(prefix)
        self._stack = AsyncExitStack()
        self._producer: AIOKafkaProducer | None = None

    async def __aenter__(self) -> Self:
        # 1 MiB is what the broker takes; the client's own limit is on the record with its overhead.
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all", max_request_size=2 << 20
        )
        await self._producer.start()
        self._stack.push_async_callback(self._producer.stop)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def send(
        self, model: str, request: InferenceRequest, *, partition: int = 0, id_: str = "", **envelope: Any
    ) -> tuple[str, Origin]:
        """Produce a request with an envelope of these fields; its id and its place."""
        id_ = id_ or f"request-{next(_ids)}"
        value, headers = encode_request_record(
            request, Envelope(id_, source="/test", **envelope), now_ms=time.time_ns() // 1_000_000
        )
        return id_, await self.send_raw(model, value, headers=headers, partition=partition)

    async def send_json(self, model: str, body: object, *, partition: int = 0) -> Origin:
        """Produce plain JSON without any header."""
        return await self.send_raw(model, msgspec.json.encode(body), partition=partition)

    async def send_raw(
        self, model: str, value: bytes | None, *, headers: Headers | None = None, partition: int = 0
    ) -> Origin:
        """Produce a record as it is, and wait until it is durable."""
        assert self._producer is not None
        topic = self.topics.infer(model)
        key = b"tombstone" if value is None else None  # the client refuses a record of nothing
        sent = await self._producer.send_and_wait(topic, value, key, partition, headers=headers or [])
        return Origin(topic, partition, sent.offset)

    async def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Produce a record to any topic, and wait until it is durable."""
        assert self._producer is not None
        await self._producer.send_and_wait(topic, value, key)

    async def send_many(
        self, model: str, requests: Sequence[InferenceRequest], *, partitions: int = 1, **envelope: Any
    ) -> list[tuple[str, Origin]]:
        """Produce requests at once, round the partitions, in order within each."""
        sends = [
            self.send(model, request, partition=index % partitions, **envelope)
            for index, request in enumerate(requests)
        ]
        return await asyncio.gather(*sends)

    async def provision(self, *models: str, partitions: int = 1) -> dict[str, RequestTopic]:
        """Make the models' topics and initial offsets, as the first worker of the default pool does."""
        admin = TopicAdmin(
            kafka=KafkaConnection(bootstrap=self._bootstrap),
            topics=self.topics,
            partitions=partitions,
            replication_factor=1,
        )
        return await asyncio.to_thread(admin.provision, models, pool="default")

    async def outcome_key(self, origin: Origin) -> str:
        """The key of a request's stored outcome, by the epoch that the broker tells."""
        model = self.topics.model_of(origin.topic)
        return outcome_key(origin, (await self.provision(model))[model].epoch)

    async def make_replies(self, *, partitions: int = 2) -> ReplyTo:
        """Create the replies topic, as a gateway does; its last partition."""

        def make() -> None:
            with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
                admin.create_topics({self.topics.replies: {"num_partitions": partitions, "replication_factor": 1}})
                admin.wait_for_topics([self.topics.replies])

        await asyncio.to_thread(make)
        return ReplyTo(self.topics.replies, partitions - 1)

    async def read(self, topic: str, *, partition: int | None = None) -> Read:
        """A reader of a topic, from its beginning; of one partition, or of all."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        self._stack.push_async_callback(consumer.stop)
        assert self._producer is not None
        numbers = await self._producer.partitions_for(topic) if partition is None else [partition]
        keys = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(keys)
        await consumer.seek_to_beginning(*keys)
        return Read(consumer)

    async def results(self, model: str) -> Read:
        """A reader of the model's results."""
        return await self.read(self.topics.results(model))

    async def dead(self, model: str) -> Read:
        """A reader of the model's dead letters."""
        return await self.read(self.topics.dead(model))

    async def progress(self, model: str, *, pool: str = "default", partitions: int = 1) -> list[Progress | None]:
        """What the pool has committed on each partition of the model; None: nothing."""
        return await asyncio.to_thread(read_progress, self._bootstrap, self.topics, model, pool, partitions)

    async def committed(self, model: str, *wanted: Progress) -> None:
        """Wait until the default pool has committed exactly this, partition by partition."""
        got: list[Progress | None] = []
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while got != list(wanted):  # each look takes some round trips
                    got = await self.progress(model, partitions=len(wanted))
        except TimeoutError as late:
            raise AssertionError(f"after {_PATIENCE_S:g} s the progress is {got}") from late

    async def members(self, *, pool: str = "default") -> int:
        """Members of the pool's group."""

        def ask() -> int:
            with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin:
                group = self.topics.group(pool)
                return len(admin.describe_groups([group])[group]["members"])

        return await asyncio.to_thread(ask)


def read_progress(bootstrap: str, topics: Topics, model: str, pool: str, partitions: int) -> list[Progress | None]:
    """See TopicClient.progress; blocks."""
    keys = [AdminPartition(topics.infer(model), number) for number in range(partitions)]
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        commits = admin.list_group_offsets({topics.group(pool): keys})[topics.group(pool)]
    progress: list[Progress | None] = []
    for key in keys:
        commit = commits.get(key)
        has = commit is not None and commit.offset >= 0
        progress.append(decode_progress(commit.offset, commit.metadata) if has else None)
    return progress


def headers_of(record: Any) -> dict[str, bytes]:
    """A record's headers by name."""
    return dict(record.headers)
