"""Reader and Member: the two halves of a consumer. Reader reads what it is told to, Member belongs to a group.

One of three files that know a Kafka client. In the client's own consumer the halves are one, and reading stops
whenever the group's partitions are dealt out anew: up to a session timeout when a worker was killed. Here Member joins,
sends heartbeats and commits, while a Reader goes on. What is read, kept and given up they are told by
workers/group_intake.py and workers/range_intake.py; errors of the client leave as InferenceError(UNAVAILABLE).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import GroupCoordinatorNotAvailableError as CoordinatorNotAvailableError
from aiokafka.errors import IllegalGenerationError, KafkaError, RebalanceInProgressError, UnknownMemberIdError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import LeaveGroupRequest

from schemas.errors import ErrorCode, InferenceError
from schemas.kafka_connection import KafkaConnection
from schemas.progress import Progress
from workers.deal import Claim, deal
from workers.holdings import Commit, Key, Rounds
from workers.publisher import client_options

_FETCH_WAIT_MS = 500
_FETCH_RECORDS = 1000
_METADATA_AGE_MS = 10_000
_RETRY_S = 0.5
_COORDINATOR_TRIES = 20
_HEARTBEAT_MS = 500  # how long a round of the group takes: each member learns of it with its next heartbeat
_REBALANCE_MS = 30_000
_NEVER_MS = 2**31 - 1
_LEAVE_S = 0.5
_LATER = (IllegalGenerationError, RebalanceInProgressError)  # a round is ending just now


class Reader:
    """Reads the partitions it is told to; knows no group."""

    def __init__(
        self, *, kafka: KafkaConnection, committed_only: bool = False, partition_fetch_bytes: int = 1 << 20
    ) -> None:
        """`committed_only`: nothing of transactions that are open or were aborted."""
        self._kafka = kafka
        self._isolation_level = "read_committed" if committed_only else "read_uncommitted"
        self._partition_fetch_bytes = partition_fetch_bytes
        self._consumer: AIOKafkaConsumer | None = None
        self._paused: set[str] = set()
        self._reading = asyncio.Event()

    async def open(self) -> None:
        """Connect. Raises InferenceError(UNAVAILABLE) if no broker answers."""
        consumer = self._consumer = AIOKafkaConsumer(
            **client_options(self._kafka),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level=self._isolation_level,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            max_partition_fetch_bytes=self._partition_fetch_bytes,
            metadata_max_age_ms=_METADATA_AGE_MS,
        )
        try:
            await consumer.start()
        except KafkaError as cause:
            await self.close()
            raise _unavailable(f"no broker at {self._kafka.bootstrap}", cause) from cause

    async def close(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            await self._consumer.stop()

    def read(self, positions: Mapping[Key, int]) -> None:
        """From now on read these, from there, and nothing else. If it reads just these already, it goes on as it is."""
        consumer = self._open_consumer()
        if consumer.assignment() == positions.keys():
            return
        if not positions:
            self._reading.clear()
            consumer.unsubscribe()
            return
        consumer.assign([TopicPartition(*key) for key in positions])
        for key, position in positions.items():
            consumer.seek(TopicPartition(*key), position)
        for topic in self._paused:
            consumer.pause(*self._read_of(topic))
        self._reading.set()

    def pause(self, topic: str) -> None:
        """Fetch nothing of `topic` until it is resumed, whatever `read` says meanwhile."""
        self._paused.add(topic)
        self._open_consumer().pause(*self._read_of(topic))

    def resume(self, topic: str) -> None:
        """Fetch of `topic` again."""
        self._paused.discard(topic)
        self._open_consumer().resume(*self._read_of(topic))

    async def fetch(self, *keys: Key) -> Mapping[Key, Sequence[Any]]:
        """Wait for records, of these partitions only if some are given, for half a second at most; cancel-safe.

        Between its end and its caller's going on nothing else runs. Raises InferenceError(UNAVAILABLE).
        """
        if not self._reading.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reading.wait(), _FETCH_WAIT_MS / 1000)
            return {}
        partitions = [TopicPartition(*key) for key in keys]
        with _translated("cannot fetch"):
            fetched: Mapping[Key, Sequence[Any]] = await self._open_consumer().getmany(
                *partitions, timeout_ms=_FETCH_WAIT_MS, max_records=_FETCH_RECORDS
            )
        return fetched

    async def position(self, key: Key) -> int | None:
        """The next offset that `fetch` would give; None if the partition is not read."""
        partition = TopicPartition(*key)
        if partition not in self._open_consumer().assignment():
            return None
        with _translated("cannot tell the position"):
            return int(await self._open_consumer().position(partition))

    async def bounds(self, keys: Collection[Key]) -> dict[Key, tuple[int, int]]:
        """The first offset and the one after the last, of partitions read or not."""
        consumer, partitions = self._open_consumer(), [TopicPartition(*key) for key in keys]
        with _translated("cannot tell the bounds"):
            first, end = await asyncio.gather(consumer.beginning_offsets(partitions), consumer.end_offsets(partitions))
        return {key: (first[key], end[key]) for key in partitions}

    def _read_of(self, topic: str) -> list[TopicPartition]:
        return [key for key in self._open_consumer().assignment() if key.topic == topic]

    def _open_consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RuntimeError("open() comes before this")
        return self._consumer


class Member(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka publishes no types
    """A member of a group, as long as it is open."""

    def __init__(self, *, kafka: KafkaConnection, group: str, topics: Iterable[str], session_timeout_s: float) -> None:
        self._kafka = kafka
        self._group = group
        self._topics = list(topics)
        self._session_timeout_s = session_timeout_s
        self._rounds: Rounds | None = None
        self._client: AIOKafkaClient | None = None
        self._subscription = SubscriptionState()
        self._coordinator: GroupCoordinator | None = None

    async def open(self, rounds: Rounds) -> None:
        """Connect, and begin to join. Raises InferenceError(UNAVAILABLE) if no broker answers."""
        self._rounds = rounds
        self._client = AIOKafkaClient(**client_options(self._kafka), metadata_max_age_ms=_METADATA_AGE_MS)
        try:
            await self._client.bootstrap()
        except KafkaError as cause:
            await self.close()
            raise _unavailable(f"cannot join group {self._group!r}", cause) from cause
        await self._client.set_topics(self._topics)
        self._subscription.subscribe(set(self._topics), self)
        self._coordinator = GroupCoordinator(
            self._client,
            self._subscription,
            group_id=self._group,
            enable_auto_commit=False,
            assignors=(_assignor(self._claim),),
            session_timeout_ms=int(1000 * self._session_timeout_s),
            heartbeat_interval_ms=_HEARTBEAT_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            max_poll_interval_ms=_NEVER_MS,  # nothing is polled here; whether the worker lives, its health tells
        )

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Be dealt partitions of these topics from the next round on, which begins now."""
        self._topics = list(topics)
        if self._client is not None and self._coordinator is not None:
            await self._client.set_topics(self._topics)
            self._subscription.subscribe(set(self._topics), self)

    async def close(self) -> None:
        """Leave the group and disconnect."""
        if self._coordinator is not None:
            leaving = asyncio.create_task(self._coordinator.close(), name="leave group")
            _, late = await asyncio.wait({leaving}, timeout=_LEAVE_S)
            if late:  # held up in a round that waits for somebody else: leave beside it, which ends that for us
                with suppress(KafkaError):
                    await self._ask(LeaveGroupRequest(self._group, self._coordinator.member_id))
            await leaving
            self._coordinator = None
        if self._client is not None:
            await self._client.close()

    def check(self) -> None:
        """Raise what has ended the membership, if something has; to be called again and again.

        Raises InferenceError(UNAVAILABLE).
        """
        with _translated(f"not in group {self._group!r}"):
            self._open_coordinator().check_errors()

    def rejoin(self) -> None:
        """Begin a round."""
        self._open_coordinator().request_rejoin()

    async def commits(self, keys: Collection[Key]) -> dict[Key, Commit]:
        """What the group has committed."""
        partitions = [TopicPartition(*key) for key in keys]
        with _translated("cannot read what is committed"):
            told = await self._open_coordinator().fetch_committed_offsets(partitions)
        return {key: (told[key].offset, told[key].metadata) if key in told else (-1, None) for key in partitions}

    async def commit(self, todo: Mapping[Key, Progress]) -> bool:
        """Commit; False: not now, try again. Raises InferenceError(UNAVAILABLE) when the group refuses for good.

        Not the client's own way: that one leaves the group when it is refused, and waits behind a round under way.
        """
        coordinator = self._open_coordinator()
        generation, member_id = coordinator.generation, coordinator.member_id
        if generation < 0:
            return False  # not in the group at this moment
        topics = [
            (topic, [(number, todo[topic, number].committed, todo[topic, number].encode()) for number in numbers])
            for topic, numbers in _by_topic(todo)
        ]
        try:
            answer = await self._ask(OffsetCommitRequest(self._group, generation, member_id, -1, topics))
            codes = {code for _, partitions in answer.topics for _, code in partitions} - {0}
            if not codes:
                return True
            raise for_code(codes.pop())
        except KafkaError as error:
            if isinstance(error, _LATER) or error.retriable:
                return False
            if isinstance(error, UnknownMemberIdError) and coordinator.member_id == member_id:
                coordinator.reset_generation()  # we are out; the sooner we join anew the better
            raise _unavailable(f"group {self._group!r} refuses a commit", error) from error

    async def _ask(self, request: Any) -> Any:
        """Send something to the group's broker, on another connection than the one that waits for rounds to end."""
        node = self._open_coordinator().coordinator_id
        if node is None or self._client is None:
            raise CoordinatorNotAvailableError
        return await self._client.send(node, request)

    def _claim(self) -> tuple[list[TopicPartition], int]:
        assert self._rounds is not None
        generation: int = self._open_coordinator().generation
        return [TopicPartition(*key) for key in self._rounds.claim(is_member=generation >= 0)], generation

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Called by the client before a round. What is ours stays ours until we say otherwise."""

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Called by the client after a round."""
        assert self._rounds is not None
        self._rounds.assign({(key.topic, key.partition) for key in assigned})

    def _open_coordinator(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise RuntimeError("open() comes before this")
        return self._coordinator


async def topic_commits(kafka: KafkaConnection, group: str, topic: str) -> dict[Key, Commit]:
    """What a group has committed of each partition of a topic, without joining it; empty: there is no such topic.

    Patient with a coordinator that is still being made. Raises InferenceError(UNAVAILABLE).
    """
    admin = AIOKafkaAdminClient(**client_options(kafka))
    with _translated(f"cannot read topic {topic!r}"):
        try:
            await admin.start()
            [described] = await admin.describe_topics([topic])
            keys = [TopicPartition(topic, item["partition"]) for item in described["partitions"]]
            if not keys:
                return {}
            for _ in range(_COORDINATOR_TRIES):
                with suppress(CoordinatorNotAvailableError):
                    told = await admin.list_consumer_group_offsets(group, partitions=keys)
                    # While a coordinator loads, the client hides its error and tells less than it was asked.
                    if len(told) == len(keys):
                        return {key: (told[key].offset, told[key].metadata) for key in keys}
                await asyncio.sleep(_RETRY_S)
            raise CoordinatorNotAvailableError(f"the commits of group {group} cannot be read")
        finally:
            await admin.close()


def _assignor(claim: Callable[[], tuple[list[TopicPartition], int]]) -> type[StickyPartitionAssignor]:
    """Who deals the partitions out when this member leads its group. Of the client's own it has only what is said in
    a claim: that one takes from owners, and blocks the event loop for half a second over 1,600 partitions.
    """

    class Assignor(StickyPartitionAssignor):  # type: ignore[misc]  # aiokafka publishes no types
        name = "tidegate-sticky"

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> Any:
            cls.member_assignment, cls.generation = claim()
            return super().metadata(topics)

        @classmethod
        def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
            claims = {}
            for member, metadata in members.items():
                told = cls.parse_member_metadata(metadata)
                claims[member] = Claim(frozenset(told.subscription), told.partitions, told.generation)
            topics = frozenset[str]().union(*(each.topics for each in claims.values()))
            partitions = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
            return {
                member: ConsumerProtocolMemberAssignment(cls.version, _by_topic(keys), b"")
                for member, keys in deal(partitions, claims).items()
            }

    return Assignor


def _by_topic(keys: Iterable[Key]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, number in keys:
        topics.setdefault(topic, []).append(number)
    return list(topics.items())


@contextmanager
def _translated(failing: str) -> Iterator[None]:
    try:
        yield
    except KafkaError as cause:
        raise _unavailable(failing, cause) from cause


def _unavailable(failing: str, cause: KafkaError) -> InferenceError:
    return InferenceError(ErrorCode.UNAVAILABLE, f"{failing}: {cause!r}")
