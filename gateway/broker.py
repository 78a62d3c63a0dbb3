"""Broker: what the gateway asks of Kafka. The gateway's only file that knows a Kafka client.

Must not know HTTP, models or outcomes: names and bytes in, names and bytes out. Everything here raises BrokerError
(the client's own root error) or TimeoutError when Kafka cannot do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber, ProducerFenced, for_code
from aiokafka.structs import OffsetAndMetadata

from gateway.outbox import Outbox

_log = structlog.get_logger(__name__)

BrokerError = KafkaError

REQUEST_TIMEOUT_S = 10.0
_METADATA_MAX_AGE_MS = 30_000  # new partitions are seen after this; new topics at once
_MAX_RECORD_BYTES = 1024 * 1024  # what brokers take by default
_MAX_BATCH_BYTES = 256 * 1024
_FETCH_BYTES = 8 * 1024 * 1024
_STOP_TIMEOUT_S = 2.0  # stop() of this client is known to hang
_RETRY_S = 0.5
_POLL_MS = 1000
_TOPIC_EXISTS = 36


class Record(Protocol):
    """A record that was read."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Commit(msgspec.Struct, frozen=True):
    """A committed offset and the text beside it."""

    offset: int
    metadata: str


class PartitionState(msgspec.Struct, frozen=True):
    """Where a group stands on a partition; without a commit it stands at the partition's first record."""

    partition: int
    commit: Commit
    end_offset: int


class Broker:
    """The connections to Kafka. `start` may be tried again after it failed; `stop` is bounded and idempotent."""

    def __init__(self, *, bootstrap: str, client_id: str) -> None:
        self._options: dict[str, Any] = {  # Any: the client publishes no types
            "bootstrap_servers": bootstrap,
            "client_id": client_id,
            "request_timeout_ms": int(REQUEST_TIMEOUT_S * 1000),
            "metadata_max_age_ms": _METADATA_MAX_AGE_MS,
        }
        self._admin: Any = None
        self._producer: Any = None
        self._lookup: Any = None
        self._partitions: dict[str, int] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._producer_lost = asyncio.Event()

    async def start(self) -> None:
        """Connect. Raises BrokerError or TimeoutError, and leaves nothing open then."""
        async with asyncio.timeout(2 * REQUEST_TIMEOUT_S), AsyncExitStack() as stack:
            admin = AIOKafkaAdminClient(**self._options)
            stack.push_async_callback(_stop, admin.close)
            await admin.start()
            producer = self._new_producer()
            stack.push_async_callback(_stop, producer.stop)
            await producer.start()
            lookup = AIOKafkaConsumer(**self._options)
            stack.push_async_callback(_stop, lookup.stop)
            await lookup.start()
            self._admin, self._producer, self._lookup = admin, producer, lookup
            stack.pop_all()

    async def stop(self) -> None:
        """Close the connections; what is not acknowledged after two seconds is given up."""
        for client in (self._producer, self._lookup):
            if client is not None:
                await _stop(client.stop)
        if self._admin is not None:
            await _stop(self._admin.close)
        self._admin = self._producer = self._lookup = None

    async def ensure_topic(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> int:
        """Create the topic unless it exists; return how many partitions it has."""
        topic = NewTopic(name, partitions, replication_factor, topic_configs=dict(configs))
        response = await self._admin.create_topics([topic])
        for _, code, *_ in response.topic_errors:
            if code not in (0, _TOPIC_EXISTS):
                raise for_code(code)(f"topic {name} cannot be created")
        return len(await self._producer.partitions_for(name))

    async def learn(self, topic: str) -> int:
        """The number of partitions of a topic, by now; until then nothing is sent to new ones."""
        count = self._partitions[topic] = len(await self._producer.partitions_for(topic))
        return count

    async def open_outbox(self, topic: str) -> Outbox:
        """Where records for a topic are handed over. Raises BrokerError when there is no such topic."""
        if topic not in self._partitions:
            await self.learn(topic)
        outbox = self._outboxes.get(topic)
        if outbox is None:
            outbox = self._outboxes[topic] = Outbox(
                topic,
                producer=lambda: self._producer,
                partition_count=lambda: self._partitions[topic],
                on_error=lambda error: self._note_lost(topic, error),
            )
        return outbox

    def outbox(self, topic: str) -> Outbox | None:
        """The outbox of a topic that has one already."""
        return self._outboxes.get(topic)

    def _note_lost(self, topic: str, error: BaseException) -> None:
        if isinstance(error, AssertionError):  # how the client says that the partition is gone
            self._outboxes.pop(topic, None)
            self._partitions.pop(topic, None)
        self.note_failure(error)

    def note_failure(self, error: BaseException) -> None:
        """Tell of a failed acknowledgement: some mean that the producer is dead and must be replaced."""
        if isinstance(error, OutOfOrderSequenceNumber | ProducerFenced) or type(error) is KafkaError:
            self._producer_lost.set()

    async def keep_producer(self) -> None:
        """For ever: replace the producer after an error that it does not survive."""
        while True:
            await self._producer_lost.wait()
            self._producer_lost.clear()
            _log.warning("replace_producer")
            fresh = self._new_producer()
            try:
                await fresh.start()
            except BrokerError as error:
                _log.warning("replace_producer_failed", error=repr(error))
                await _stop(fresh.stop)
                await asyncio.sleep(_RETRY_S)
                self._producer_lost.set()
                continue
            lost, self._producer = self._producer, fresh
            await _stop(lost.stop)

    async def append(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Write a record to a compacted topic, None to remove its key; it is durable then. Raises BrokerError."""
        await self._producer.send_and_wait(topic, value=value, key=key, partition=0)

    async def flush(self) -> None:
        """Wait until everything handed over is acknowledged or failed."""
        for outbox in list(self._outboxes.values()):
            await outbox.flush()
        await self._producer.flush()

    def follow(self, topic: str, positions: Mapping[int, int], *, group: str | None = None) -> Follower:
        """A reader of some partitions of a topic from the given offsets on; with `group` it can commit."""
        return Follower(self._options, topic, positions, group)

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The first offset of each partition."""
        found = await self._lookup.beginning_offsets([TopicPartition(topic, partition) for partition in partitions])
        return {tp.partition: offset for tp, offset in found.items()}

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset of each partition."""
        found = await self._lookup.end_offsets([TopicPartition(topic, partition) for partition in partitions])
        return {tp.partition: offset for tp, offset in found.items()}

    async def commits(self, group: str, topics: Mapping[str, int]) -> dict[tuple[str, int], Commit]:
        """What a group has committed on topics with so many partitions each; partitions without a commit are left out.

        Raises rather than leave out a partition whose commit cannot be read.
        """
        wanted = [TopicPartition(topic, partition) for topic, count in topics.items() for partition in range(count)]
        found = await self._admin.list_consumer_group_offsets(group, partitions=wanted)
        # While a coordinator loads, the client hides its error and returns less than it was asked for.
        if len(found) < len(wanted):
            raise BrokerError(f"the commits of group {group} cannot be read at present")
        return {
            (tp.topic, tp.partition): Commit(committed.offset, committed.metadata)
            for tp, committed in found.items()
            if committed.offset >= 0
        }

    async def states(self, group: str, topics: Sequence[str]) -> dict[str, tuple[PartitionState, ...]]:
        """Where a group stands on every partition of the topics. Commits are read first, so no backlog is negative."""
        counts = {topic: len(await self._producer.partitions_for(topic)) for topic in topics}
        commits = await self.commits(group, counts)
        states = {}
        for topic, count in counts.items():
            bare = [partition for partition in range(count) if (topic, partition) not in commits]
            begin = await self.beginnings(topic, bare) if bare else {}
            ends = await self.ends(topic, range(count))
            states[topic] = tuple(
                PartitionState(partition, commits.get((topic, partition)) or Commit(begin[partition], ""), end)
                for partition, end in sorted(ends.items())
            )
        return states

    def _new_producer(self) -> Any:
        return AIOKafkaProducer(
            **self._options,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=_MAX_BATCH_BYTES,
            max_request_size=_MAX_RECORD_BYTES,
        )


class Follower:
    """Reads partitions without a group for ever: whatever ends the client, a new one goes on where it was."""

    def __init__(self, options: Mapping[str, Any], topic: str, positions: Mapping[int, int], group: str | None) -> None:
        self._options = options
        self._topic = topic
        self._group = group
        self._consumer: Any = None
        self.positions = dict(positions)

    async def run(
        self, on_records: Callable[[Sequence[Record]], None], *, on_poll: Callable[[], None] = lambda: None
    ) -> None:
        """Read until cancelled. `on_poll` follows the start and every attempt to read."""
        failed = False
        while True:
            try:
                async with AsyncExitStack() as stack:
                    await self._open(stack)
                    if failed:
                        _log.info("read_again", topic=self._topic)
                    failed = False
                    on_poll()
                    while True:
                        await self._poll(on_records)
                        on_poll()
            except BrokerError as error:
                if not failed:
                    _log.warning("read_failed", topic=self._topic, error=repr(error))
                failed = True
            await asyncio.sleep(_RETRY_S)

    async def commit(self, partition: int, commit: Commit) -> None:
        """Commit a position. Raises BrokerError, also while the reader is being replaced."""
        if self._consumer is None:
            raise BrokerError("the reader is being replaced")
        where = TopicPartition(self._topic, partition)
        await self._consumer.commit({where: OffsetAndMetadata(commit.offset, commit.metadata)})

    async def _open(self, stack: AsyncExitStack) -> None:
        consumer = AIOKafkaConsumer(
            **self._options,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # after retention took what we had not read: what is left
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        stack.push_async_callback(_stop, consumer.stop)
        stack.callback(setattr, self, "_consumer", None)
        places = {TopicPartition(self._topic, partition): offset for partition, offset in self.positions.items()}
        consumer.assign(list(places))
        await consumer.start()
        for place, offset in places.items():
            consumer.seek(place, offset)
        self._consumer = consumer

    async def _poll(self, on_records: Callable[[Sequence[Record]], None]) -> None:
        got = await self._consumer.getmany(timeout_ms=_POLL_MS)
        for place, records in got.items():
            on_records(records)
            self.positions[place.partition] = records[-1].offset + 1
        if not got:  # compacted tails and markers move a position without a record
            for partition in self.positions:
                place = TopicPartition(self._topic, partition)
                self.positions[partition] = await self._consumer.position(place)


async def _stop(stop: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await stop()
    except (TimeoutError, BrokerError) as error:
        _log.warning("stop_client_failed", error=repr(error))
