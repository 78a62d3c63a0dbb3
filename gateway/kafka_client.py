"""KafkaClient: the Kafka client as the gateway uses it: its clients with our options, its errors, its names of places.

The gateway's only file that imports it. Knows nothing of what is read or written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, KafkaTimeoutError, OutOfOrderSequenceNumber, ProducerFenced, for_code
from aiokafka.structs import OffsetAndMetadata

from schemas.kafka_connection import KafkaConnection

_log = structlog.get_logger(__name__)

BrokerError = KafkaError

REQUEST_TIMEOUT_S = 10.0
_METADATA_MAX_AGE_MS = 30_000  # new partitions are seen after this; new topics at once
_MAX_RECORD_BYTES = 1024 * 1024  # what brokers take by default
_MAX_BATCH_BYTES = 256 * 1024
_FETCH_BYTES = 8 * 1024 * 1024
_STOP_TIMEOUT_S = 2.0  # stop() of this client is known to hang
_GROUP_FETCH_BYTES = 1024 * 1024  # of each partition, of which a group's member may hold many
_GROUP_METADATA_MAX_AGE_MS = 3_000
_REBALANCE_MS = 30_000
_TOPIC_EXISTS = 36

Options = Mapping[str, Any]  # Any, here and below: the client publishes no types
OnPlaces = Callable[[Collection[Any]], Awaitable[None]]  # of the client's (topic, partition)
place = TopicPartition


class Record(Protocol):
    """A record that was read."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Commit(msgspec.Struct, frozen=True):
    """A committed offset and the text beside it."""

    offset: int
    metadata: str


def connection_options(kafka: KafkaConnection, client_id: str) -> Options:
    """What all clients of a process are made with. Raises InferenceError when a certificate cannot be used."""
    return {
        **kafka.options(),
        **({"sasl_oauth_token_provider": _FileToken(kafka)} if kafka.has_token else {}),
        "client_id": client_id,
        "request_timeout_ms": int(REQUEST_TIMEOUT_S * 1000),
        "metadata_max_age_ms": _METADATA_MAX_AGE_MS,
    }


def new_admin(options: Options) -> Any:
    """A client for topics and groups' offsets; to be started and stopped, as all of these."""
    return AIOKafkaAdminClient(**options)


def new_producer(options: Options) -> Any:
    """A producer whose records are durable once they are acknowledged."""
    return AIOKafkaProducer(
        **options,
        enable_idempotence=True,
        acks="all",
        linger_ms=0,
        max_batch_size=_MAX_BATCH_BYTES,
        max_request_size=_MAX_RECORD_BYTES,
    )


def new_lookup(options: Options) -> Any:
    """A consumer that reads nothing, but tells where partitions begin and end."""
    return AIOKafkaConsumer(**options)


def new_consumer(options: Options, group: str | None) -> Any:
    """A consumer to which partitions are assigned by hand; with `group` it can commit."""
    return AIOKafkaConsumer(
        **options,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # after retention took what we had not read: what is left
        max_partition_fetch_bytes=_FETCH_BYTES,
    )


def new_member(options: Options, group: str, pattern: str, on_revoked: OnPlaces, on_assigned: OnPlaces) -> Any:
    """A consumer that shares the topics of this pattern with its group; new topics are noticed within seconds."""
    consumer = AIOKafkaConsumer(
        **{**options, "metadata_max_age_ms": _GROUP_METADATA_MAX_AGE_MS},
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",  # of a topic that is noticed late, what came meanwhile
        max_partition_fetch_bytes=_GROUP_FETCH_BYTES,
        rebalance_timeout_ms=_REBALANCE_MS,
    )
    consumer.subscribe(pattern=pattern, listener=_Listener(on_revoked, on_assigned))
    return consumer


async def create_topic(
    admin: Any, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
) -> None:
    """Create the topic unless it exists. Raises BrokerError."""
    response = await admin.create_topics([NewTopic(name, partitions, replication_factor, topic_configs=dict(configs))])
    for _, code, *_ in response.topic_errors:
        if code not in (0, _TOPIC_EXISTS):
            raise for_code(code)(f"topic {name} cannot be created")


async def commit_place(consumer: Any, topic: str, partition: int, commit: Commit) -> None:
    """Commit one partition. Raises BrokerError."""
    await consumer.commit({place(topic, partition): OffsetAndMetadata(commit.offset, commit.metadata)})


def away_error() -> BaseException:
    """The error of what was not sent because Kafka cannot be reached."""
    error: BaseException = KafkaTimeoutError("Kafka cannot be reached")
    return error


def means_away(error: BaseException) -> bool:
    """Whether Kafka may be away, after this error."""
    return isinstance(error, KafkaTimeoutError) or (isinstance(error, KafkaError) and bool(error.retriable))


def ends_producer(error: BaseException) -> bool:
    """Whether a producer does not survive this error."""
    return isinstance(error, OutOfOrderSequenceNumber | ProducerFenced) or type(error) is KafkaError


async def stop_client(stop: Callable[[], Awaitable[None]]) -> None:
    """Stop a client within two seconds; what goes wrong with that is logged."""
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await stop()
    except (TimeoutError, BrokerError) as error:
        _log.warning("stop_client_failed", error=repr(error))


class _FileToken(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka publishes no types
    """The token of a file, read anew for each connection."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka

    async def token(self) -> str:
        """The token. Raises InferenceError."""
        return await asyncio.to_thread(self._kafka.token)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # the client publishes no types
    def __init__(self, on_revoked: OnPlaces, on_assigned: OnPlaces) -> None:
        self._on_revoked, self._on_assigned = on_revoked, on_assigned

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        await self._on_revoked(revoked)

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        await self._on_assigned(assigned)
