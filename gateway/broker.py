"""Broker: what the gateway asks of Kafka.

Must not know HTTP, models or outcomes: names and bytes in, names and bytes out. Everything here raises BrokerError
(the client's own root error) or TimeoutError when Kafka cannot do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import structlog

from gateway.follower import Follower
from gateway.kafka_client import (
    REQUEST_TIMEOUT_S,
    BrokerError,
    Commit,
    OnPlaces,
    away_error,
    connection_options,
    create_topic,
    ends_producer,
    means_away,
    new_admin,
    new_lookup,
    new_member,
    new_producer,
    place,
    stop_client,
)
from gateway.outbox import Outbox
from gateway.reachability import Reachability
from schemas.kafka_connection import KafkaConnection

_log = structlog.get_logger(__name__)

_RETRY_S = 0.5


class PartitionState(msgspec.Struct, frozen=True):
    """Where a group stands on a partition; without a commit it stands at the partition's first record."""

    partition: int
    commit: Commit
    end_offset: int


class Broker:
    """The connections to Kafka. `start` may be tried again after it failed; `stop` is bounded and idempotent."""

    def __init__(self, *, kafka: KafkaConnection, client_id: str) -> None:
        """Raises InferenceError when a certificate cannot be used."""
        self._options = connection_options(kafka, client_id)
        self._admin: Any = None
        self._producer: Any = None
        self._lookup: Any = None
        self._partitions: dict[str, int] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._producer_lost = asyncio.Event()
        self.reachability = Reachability(probe=self._probe, overdue_s=self._overdue_s, on_away=self._fail_waiting)

    async def start(self) -> None:
        """Connect. Raises BrokerError or TimeoutError, and leaves nothing open then."""
        async with asyncio.timeout(2 * REQUEST_TIMEOUT_S), AsyncExitStack() as stack:
            admin = new_admin(self._options)
            stack.push_async_callback(stop_client, admin.close)
            await admin.start()
            producer = new_producer(self._options)
            stack.push_async_callback(stop_client, producer.stop)
            await producer.start()
            lookup = new_lookup(self._options)
            stack.push_async_callback(stop_client, lookup.stop)
            await lookup.start()
            self._admin, self._producer, self._lookup = admin, producer, lookup
            stack.pop_all()

    async def stop(self) -> None:
        """Close the connections; what is not acknowledged after two seconds is given up."""
        for client in (self._producer, self._lookup):
            if client is not None:
                await stop_client(client.stop)
        if self._admin is not None:
            await stop_client(self._admin.close)
        self._admin = self._producer = self._lookup = None

    async def ensure_topic(
        self, name: str, *, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> int:
        """Create the topic unless it exists; return how many partitions it has."""
        await create_topic(
            self._admin, name, partitions=partitions, replication_factor=replication_factor, configs=configs
        )
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
        """Tell of a failed acknowledgement: some mean that the producer is dead and must be replaced, some that Kafka
        may be away.
        """
        if means_away(error):
            self.reachability.note_failure()
        if ends_producer(error):
            self._producer_lost.set()

    async def keep_producer(self) -> None:
        """For ever: replace the producer after an error that it does not survive."""
        while True:
            await self._producer_lost.wait()
            self._producer_lost.clear()
            _log.warning("replace_producer")
            fresh = new_producer(self._options)
            try:
                await fresh.start()
            except BrokerError as error:
                _log.warning("replace_producer_failed", error=repr(error))
                await stop_client(fresh.stop)
                await asyncio.sleep(_RETRY_S)
                self._producer_lost.set()
                continue
            lost, self._producer = self._producer, fresh
            await stop_client(lost.stop)

    async def _probe(self) -> bool:
        # Any answer will do; another's unfinished question is shared.
        return self._producer is not None and bool(await self._producer.client.force_metadata_update())

    def _overdue_s(self, now_s: float) -> float:
        return max((outbox.overdue_s(now_s) for outbox in self._outboxes.values()), default=0.0)

    def _fail_waiting(self) -> None:
        away = away_error()
        for outbox in self._outboxes.values():
            outbox.fail_waiting(away)

    async def append(self, topic: str, key: bytes | None, value: bytes | None, *, partition: int = 0) -> None:
        """Write one record; None removes its key from a compacted topic. It is durable then. Raises BrokerError."""
        try:
            await self._producer.send_and_wait(topic, value=value, key=key, partition=partition)
        except BrokerError as error:
            self.note_failure(error)
            raise

    async def flush(self) -> None:
        """Wait until everything handed over is acknowledged or failed."""
        for outbox in list(self._outboxes.values()):
            await outbox.flush()
        await self._producer.flush()

    def join(self, group: str, pattern: str, on_revoked: OnPlaces, on_assigned: OnPlaces) -> Any:
        """A consumer, to be started and stopped by the caller, that shares the topics of this pattern with its group.

        New topics are noticed within three seconds. Each round of the group first awaits `on_revoked` with the places
        (topic, partition) that were held, then `on_assigned` with those that are held from then on.
        """
        return new_member(self._options, group, pattern, on_revoked, on_assigned)

    def follow(self, topic: str, positions: Mapping[int, int], *, group: str | None = None) -> Follower:
        """A reader of some partitions of a topic from the given offsets on; with `group` it can commit."""
        return Follower(self._options, topic, positions, group)

    async def beginnings(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The first offset of each partition."""
        found = await self._lookup.beginning_offsets([place(topic, partition) for partition in partitions])
        return {tp.partition: offset for tp, offset in found.items()}

    async def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset of each partition."""
        found = await self._lookup.end_offsets([place(topic, partition) for partition in partitions])
        return {tp.partition: offset for tp, offset in found.items()}

    async def offsets_at(self, topic: str, partitions: Iterable[int], at_ms: int) -> dict[int, int]:
        """The offset of each partition's first record of this moment or later; its next offset where there is none."""
        places = [place(topic, partition) for partition in partitions]
        found = await self._lookup.offsets_for_times(dict.fromkeys(places, at_ms))
        missing = [at.partition for at in places if found.get(at) is None]
        ends = await self.ends(topic, missing) if missing else {}
        return {at.partition: found[at].offset for at in places if at.partition not in ends} | ends

    async def commits(self, group: str, topics: Mapping[str, int]) -> dict[tuple[str, int], Commit]:
        """What a group has committed on topics with so many partitions each; partitions without a commit are left out.

        Raises rather than leave out a partition whose commit cannot be read.
        """
        wanted = [place(topic, partition) for topic, count in topics.items() for partition in range(count)]
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
