"""ReplyReader: reads one partition of the replies topic, and knows how far it may be committed.

Who holds a partition answers for all that is in it: a reply goes to the request that waits for it here, or is stored,
whosever it is. A commit never passes a reply whose outcome is still to be stored. Knows no HTTP and no Kafka client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.follower import Follower
from gateway.kafka_client import Commit, Record
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes


class ReplyReader:
    """One partition from one offset on."""

    def __init__(
        self,
        follower: Follower,
        partition: int,
        *,
        own_ids: bytes,
        outcomes: Outcomes,
        metrics: Metrics,
        answer: Callable[[bytes, Record], bool],
    ) -> None:
        """`answer(id, record)` gives a reply to its waiting request; False when none waits."""
        self._follower = follower
        self._own_ids = own_ids
        self._outcomes = outcomes
        self._metrics = metrics
        self._answer = answer
        self._next_offset = follower.positions[partition]
        self._unstored: set[int] = set()
        self.partition = partition
        self.is_holder = True  # False once another gateway holds the partition: it stores what is not for us
        # Offsets of replies that are still to be read again and stored: from before our time, or without room since.
        self.orphans: tuple[int, int] | None = None

    async def run(self, *, on_poll: Callable[[], None]) -> None:
        """Read until cancelled; `on_poll` follows each attempt."""
        await self._follower.run(self._take, on_poll=on_poll)

    async def commit(self, metadata: str) -> None:
        """Commit how far this partition is done. Raises BrokerError."""
        left_out = self.orphans[:1] if self.orphans else ()
        offset = min((*left_out, *self._unstored), default=self._next_offset)
        await self._follower.commit(self.partition, Commit(offset, metadata))

    def adopted(self, end: int) -> None:
        """What is left to be stored up to this offset is."""
        if self.orphans is not None:
            self.orphans = (end, self.orphans[1]) if end < self.orphans[1] else None

    def _take(self, records: Sequence[Record]) -> None:
        answer = self._answer
        for record in records:
            id_ = b""
            for name, value in record.headers:
                if name == "ce_id":
                    id_ = value
                    break
            if answer(id_, record):
                continue
            is_own = id_.startswith(self._own_ids)
            (self._metrics.replies_late if is_own else self._metrics.replies_foreign).inc()
            if is_own or self.is_holder:
                self._keep(record)
        self._next_offset = records[-1].offset + 1

    def _keep(self, record: Record) -> None:
        offset = record.offset
        if not self._outcomes.has_room:
            # While the store is away it stays in the topic, as what came before our time does, and is read again.
            self.orphans = (self.orphans[0] if self.orphans else offset, offset + 1)
            return
        self._unstored.add(offset)
        self._outcomes.keep_record(record, on_kept=lambda: self._unstored.discard(offset))
