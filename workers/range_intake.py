"""RangeIntake: one topic from a group's committed progress up to its end, for offline scoring; commits nothing itself.

Knows no Kafka client: that is workers/intake.py.
"""

from __future__ import annotations

from collections.abc import Collection

from schemas.errors import invalid
from schemas.kafka_connection import KafkaConnection
from schemas.record import DEADLINE_HEADER, START_BY_HEADER, VERSION_HEADER
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.delivery import Delivery, Exhausted, Partition
from workers.holdings import Key, inherited
from workers.intake import Reader, topic_commits
from workers.receipts import Receipts, delivery_of

_FETCH_BYTES = 4 * 1024 * 1024
_LEFT_OUT = (DEADLINE_HEADER, START_BY_HEADER, VERSION_HEADER)


class RangeIntake(Receipts):
    """One topic from the group's committed progress up to its end at `open`.

    The headers `left_out` are not delivered: deadlines and versions were for whoever waited at the time.
    """

    def __init__(
        self, *, kafka: KafkaConnection, group: str, topic: str, left_out: Collection[str] = _LEFT_OUT
    ) -> None:
        super().__init__()
        self._left_out = left_out
        self._kafka = kafka
        self._group = group
        self._topic = topic
        self._reader = Reader(kafka=kafka, committed_only=True, partition_fetch_bytes=_FETCH_BYTES)
        self._partitions: dict[Key, Partition] = {}
        self._ends: dict[Key, int] = {}

    async def open(self) -> int:
        """Find the range; returns how many offsets it still spans. Raises InferenceError."""
        await self._reader.open()
        commits = await topic_commits(self._kafka, self._group, self._topic)
        if not commits:
            remedy = "name a topic of this cluster"
            raise invalid(f"there is no topic {self._topic!r}", field="from", value=self._topic, remedy=remedy)
        bounds = await self._reader.bounds(commits.keys())
        self._ends = {key: end for key, (_, end) in bounds.items()}
        begins = inherited(commits, bounds)
        for (topic, number), begin in begins.items():
            self._partitions[topic, number] = Partition(topic, number, AckTracker(begin), BrokerClock())
        self._reader.read({key: begin.committed for key, begin in begins.items()})
        return sum(self._ends[key] - begin.committed for key, begin in begins.items())

    async def close(self) -> None:
        """Disconnect."""
        await self._reader.close()

    @property
    def partitions(self) -> list[Partition]:
        """The topic's partitions, with what was acknowledged of them."""
        return list(self._partitions.values())

    def pause(self, topic: str) -> None:
        """Deliver nothing more of `topic`."""
        self._reader.pause(topic)

    def resume(self, topic: str) -> None:
        """Deliver records of `topic` again."""
        self._reader.resume(topic)

    async def fetch(self) -> list[Delivery]:
        """Wait for records and return at least one. Raises Exhausted at the end of the range. Cancel-safe."""
        while True:
            if released := self._take_released():
                return released
            todo = [key for key in self._partitions if await self._position(key) < self._ends[key]]
            if not todo:
                raise Exhausted
            deliveries: list[Delivery] = []
            for key, records in (await self._reader.fetch(*todo)).items():
                partition, end = self._partitions[key], self._ends[key]
                deliveries += [
                    delivery_of(partition, record, without=self._left_out)
                    for record in records
                    if record.offset < end and partition.tracker.deliver(record.offset)
                ]
            if deliveries:
                return deliveries

    async def pass_gaps(self) -> None:
        """At the end: let the committed offsets stand behind transaction markers, at the end of the range."""
        for key, partition in self._partitions.items():
            partition.tracker.pass_gap(min(await self._position(key), self._ends[key]))

    async def _position(self, key: Key) -> int:
        position = await self._reader.position(key)
        assert position is not None  # all of them are read, from `open` on
        return position
