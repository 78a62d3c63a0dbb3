"""GroupIntake and RangeIntake: request topics read as a member of a group, or one topic up to its end.

One of three files that know a Kafka client. A group's offsets are committed here and nowhere else: on a short timer,
before partitions are given away, and at the end. What is done out of order travels in the commit's metadata. The group
protocol is the eager one, so every rebalance revokes everything; partitions that come back keep their tracker and
their position, and their queued work goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import GroupCoordinatorNotAvailableError as CoordinatorNotAvailableError
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.progress import Progress, inherited_progress
from schemas.record import DEADLINE_HEADER, VERSION_HEADER, Origin
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.delivery import Delivery, Exhausted, Partition, RebalanceListener

log = structlog.get_logger()

T = TypeVar("T")

_FETCH_WAIT_MS = 500
_FETCH_RECORDS = 1000
_RETRY_S = 0.5
_COORDINATOR_TRIES = 20


class _ConsumerIntake:
    """What both intakes do with a consumer once it is there."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Partition] = {}
        self._released: list[Delivery] = []
        self._paused: set[str] = set()
        self._consumer: AIOKafkaConsumer | None = None
        self._admin: AIOKafkaAdminClient | None = None

    def start(self, delivery: Delivery) -> None:
        """Work on this record begins."""
        delivery.partition.tracker.start(delivery.offset)

    def acknowledge(self, delivery: Delivery) -> None:
        """The record's outcome is durable, or part of the transaction that is about to be committed."""
        if not delivery.partition.lost:
            delivery.partition.tracker.acknowledge(delivery.offset)

    def release(self, delivery: Delivery) -> None:
        """Hand the record out again."""
        self._released.append(delivery)

    def pause(self, topic: str) -> None:
        """Deliver nothing more of `topic`; polling and membership go on."""
        self._paused.add(topic)
        self._open_consumer().pause(*self._held(topic))

    def resume(self, topic: str) -> None:
        """Deliver records of `topic` again."""
        self._paused.discard(topic)
        self._open_consumer().resume(*self._held(topic))

    async def close(self) -> None:
        """Disconnect, and leave the group. Commits nothing."""
        if self._consumer is not None:
            await self._consumer.stop()
        if self._admin is not None:
            await self._admin.close()

    async def _opened(self, opening: Coroutine[Any, Any, T], failing: str) -> T:
        try:
            return await opening
        except KafkaError as cause:
            await self.close()
            raise InferenceError(ErrorCode.UNAVAILABLE, f"{failing}: {cause!r}") from cause

    def _held(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions that are ours at this moment; within a rebalance there are none."""
        return [key for key in self._open_consumer().assignment() if key.topic == topic and key in self._partitions]

    def _take_released(self) -> list[Delivery]:
        released, self._released = self._released, []
        return [delivery for delivery in released if not delivery.partition.lost]

    def _open_consumer(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise RuntimeError("open() comes before this")
        return self._consumer


class GroupIntake(_ConsumerIntake, ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka publishes no types
    """The consumer-group form of an Intake (see workers/delivery.py)."""

    def __init__(self, *, bootstrap: str, group: str, topics: Iterable[str], clock_seed_us: int | None = None) -> None:
        """`clock_seed_us`: see workers/arrival.py."""
        super().__init__()
        self._bootstrap = bootstrap
        self._group = group
        self._topics = list(topics)
        self._clock_seed_us = clock_seed_us
        self._listener: RebalanceListener | None = None
        self._committed: dict[TopicPartition, Progress] = {}
        self.assigned = asyncio.Event()
        self.unassigned_since_s = time.monotonic()

    async def open(self, listener: RebalanceListener) -> None:
        """Join the group. Raises InferenceError(UNAVAILABLE) if no broker answers."""
        self._listener = listener
        await self._opened(self._open(), f"cannot join group {self._group!r}")

    async def _open(self) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await self._admin.start()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[StickyPartitionAssignor],
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,  # how long a rebalance waits for members to notice it
            rebalance_timeout_ms=30_000,
            max_poll_interval_ms=600_000,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            metadata_max_age_ms=10_000,
        )
        self._consumer.subscribe(self._topics, listener=self)
        await self._consumer.start()

    async def fetch(self) -> list[Delivery]:
        """Wait for records and return at least one. Cancel-safe."""
        while True:
            if released := self._take_released():
                return released
            try:
                fetched = await self._open_consumer().getmany(timeout_ms=_FETCH_WAIT_MS, max_records=_FETCH_RECORDS)
                if not fetched:
                    await self._pass_gaps()
            except KafkaError as error:
                log.warning("fetch_records_failed", error=repr(error))
                await asyncio.sleep(_RETRY_S)
                continue
            deliveries = self._deliveries(fetched)
            if deliveries:
                return deliveries

    def _deliveries(self, fetched: dict[TopicPartition, list[Any]]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for key, records in fetched.items():
            partition = self._partitions.get(key)
            if partition is None:  # revoked while the fetch was under way; its next owner reads it
                continue
            deliver = partition.tracker.deliver
            deliveries += [_delivery(partition, record, record.headers) for record in records if deliver(record.offset)]
        return deliveries

    async def _pass_gaps(self) -> None:
        """Let idle partitions commit past transaction markers, else their backlog would never reach zero.

        Only here: this is the one place where no record can be between the client's position and the tracker.
        """
        consumer = self._open_consumer()
        for key, partition in list(self._partitions.items()):
            if key in consumer.assignment():
                partition.tracker.pass_gap(await consumer.position(key))

    async def commit(self) -> None:
        """Commit what was acknowledged of the partitions we hold.

        A commit that the group refuses is logged and dropped: those partitions belong to somebody else by then.
        """
        consumer = self._open_consumer()
        held = consumer.assignment()
        todo: dict[TopicPartition, Progress] = {}
        for key, partition in self._partitions.items():
            progress = partition.tracker.progress()
            if key in held and progress != self._committed.get(key):
                todo[key] = progress
        if not todo:
            return
        offsets = {key: OffsetAndMetadata(progress.committed, progress.encode()) for key, progress in todo.items()}
        try:
            await consumer.commit(offsets)
        except KafkaError as error:
            log.warning("commit_refused", error=repr(error))
        else:
            self._committed.update(todo)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Called by the client before a rebalance: running work ends, what is done is committed."""
        self.assigned.clear()
        self.unassigned_since_s = time.monotonic()
        if revoked:
            assert self._listener is not None
            await self._listener.before_revoke()
            await self.commit()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Called by the client after a rebalance, before it fetches."""
        for key in [key for key in self._partitions if key not in assigned]:
            self._partitions.pop(key).lost = True
            self._committed.pop(key, None)
        consumer = self._open_consumer()
        new = sorted(key for key in assigned if key not in self._partitions)
        if new:
            assert self._admin is not None
            while True:  # the client swallows what a listener raises; these partitions would then be read by nobody
                try:
                    inherited = await _inherit(self._admin, consumer, self._group, new)
                    break
                except KafkaError as error:
                    log.warning("read_commits_failed", error=repr(error))
                    await asyncio.sleep(_RETRY_S)
            for key, progress in inherited.items():
                clock = BrokerClock(seed_us=self._clock_seed_us)
                self._partitions[key] = Partition(key.topic, key.partition, AckTracker(progress), clock)
        for key in assigned:
            consumer.seek(key, self._partitions[key].tracker.position)
            if key.topic in self._paused:
                consumer.pause(key)
        log.info("assign_partitions", partitions=len(assigned), new=len(new))
        self.assigned.set()
        assert self._listener is not None
        self._listener.after_assign()


class RangeIntake(_ConsumerIntake):
    """One topic from the group's committed progress up to its end at `open`; commits nothing itself.

    The headers `left_out` are not delivered: deadlines and versions were for whoever waited at the time.
    """

    def __init__(
        self, *, bootstrap: str, group: str, topic: str, left_out: Collection[str] = (DEADLINE_HEADER, VERSION_HEADER)
    ) -> None:
        super().__init__()
        self._left_out, self._bootstrap, self._group = left_out, bootstrap, group
        self._topic = topic
        self._ends: dict[TopicPartition, int] = {}

    async def open(self) -> int:
        """Find the range; returns how many offsets it still spans. Raises InferenceError."""
        return await self._opened(self._open(), f"cannot read topic {self._topic!r}")

    async def _open(self) -> int:
        consumer = self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            max_partition_fetch_bytes=4 * 1024 * 1024,
        )
        await consumer.start()
        admin = self._admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        [described] = await admin.describe_topics([self._topic])
        keys = [TopicPartition(self._topic, item["partition"]) for item in described["partitions"]]
        if not keys:
            remedy = "name a topic of this cluster"
            raise invalid(f"there is no topic {self._topic!r}", field="from", value=self._topic, remedy=remedy)
        inherited = await _inherit(admin, consumer, self._group, keys)
        consumer.assign(keys)
        self._ends = await consumer.end_offsets(keys)
        for key in keys:
            self._partitions[key] = Partition(key.topic, key.partition, AckTracker(inherited[key]), BrokerClock())
            consumer.seek(key, inherited[key].committed)
        return sum(self._ends[key] - inherited[key].committed for key in keys)

    @property
    def partitions(self) -> list[Partition]:
        """The topic's partitions, with what was acknowledged of them."""
        return list(self._partitions.values())

    async def fetch(self) -> list[Delivery]:
        """Wait for records and return at least one. Raises Exhausted at the end of the range. Cancel-safe."""
        consumer = self._open_consumer()
        while True:
            if released := self._take_released():
                return released
            todo = [key for key in self._partitions if await consumer.position(key) < self._ends[key]]
            if not todo:
                raise Exhausted
            deliveries: list[Delivery] = []
            fetched = await consumer.getmany(*todo, timeout_ms=_FETCH_WAIT_MS, max_records=_FETCH_RECORDS)
            for key, records in fetched.items():
                partition, end = self._partitions[key], self._ends[key]
                deliveries += [
                    _delivery(
                        partition, record, [header for header in record.headers if header[0] not in self._left_out]
                    )
                    for record in records
                    if record.offset < end and partition.tracker.deliver(record.offset)
                ]
            if deliveries:
                return deliveries

    async def pass_gaps(self) -> None:
        """At the end: let the committed offsets stand behind transaction markers, at the end of the range."""
        for key, partition in self._partitions.items():
            position = await self._open_consumer().position(key)
            partition.tracker.pass_gap(min(position, self._ends[key]))


def _delivery(partition: Partition, record: Any, headers: Sequence[tuple[str, bytes]]) -> Delivery:
    origin = Origin(partition.topic, partition.number, record.offset)
    return Delivery(partition, origin, record.timestamp, headers, record.value)


async def _commits(
    admin: AIOKafkaAdminClient, group: str, keys: list[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the group has committed, -1 where nothing; patient with a coordinator that is still being made."""
    for _ in range(_COORDINATOR_TRIES):
        try:
            commits: dict[TopicPartition, OffsetAndMetadata] = await admin.list_consumer_group_offsets(
                group, partitions=keys
            )
            # While a coordinator loads, the client hides its error and tells less than it was asked.
            if len(commits) == len(keys):
                return commits
        except CoordinatorNotAvailableError:
            pass
        await asyncio.sleep(_RETRY_S)
    raise CoordinatorNotAvailableError(f"the commits of group {group} cannot be read")


async def _inherit(
    admin: AIOKafkaAdminClient, consumer: AIOKafkaConsumer, group: str, keys: list[TopicPartition]
) -> dict[TopicPartition, Progress]:
    """Where a new owner of each partition begins."""
    commits, first, end = await asyncio.gather(
        _commits(admin, group, keys), consumer.beginning_offsets(keys), consumer.end_offsets(keys)
    )
    return {
        key: inherited_progress(commits[key].offset, commits[key].metadata, first=first[key], end=end[key])
        for key in keys
    }
