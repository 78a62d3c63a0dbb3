"""ControlReader: the control topic from its beginning on. Knows no Kafka client, nor what its records say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.broker import Broker
from gateway.follower import Follower
from gateway.kafka_client import Record


class ControlReader:
    """Gives each record to whoever wants it. `known` is set once all that was there when it was opened is read."""

    def __init__(self, *, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._follower: Follower | None = None
        self._ends: dict[int, int] = {}
        self.known = asyncio.Event()

    async def open(self) -> None:
        """Find out where the topic begins and ends. Raises BrokerError or TimeoutError, and may be tried again."""
        partitions = range(await self._broker.learn(self._topic))
        begin = await self._broker.beginnings(self._topic, partitions)
        self._ends = await self._broker.ends(self._topic, partitions)
        self._follower = self._broker.follow(self._topic, begin)

    async def run(self, apply: Callable[[Record], None]) -> None:
        """Read for ever. To be called once it is open."""
        follower = self._follower
        assert follower is not None  # opened before

        def learn(records: Sequence[Record]) -> None:
            for record in records:
                apply(record)

        def check() -> None:
            if not self.known.is_set() and all(follower.positions[at] >= end for at, end in self._ends.items()):
                self.known.set()

        await follower.run(learn, on_poll=check)
