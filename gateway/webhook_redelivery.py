"""WebhookRedelivery: has webhooks that were given up delivered again, by time. Knows no Kafka client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import structlog

from gateway.broker import Broker
from gateway.kafka_client import Record
from gateway.webhook_delivery import WebhookDelivery, decode_delivery
from gateway.webhook_queue import WebhookQueue
from gateway.webhook_states import WebhookStage, WebhookStates
from schemas.errors import InferenceError

_log = structlog.get_logger(__name__)

_AGE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AT_A_TIME = 32


def parse_age_s(text: str) -> float:
    """Seconds of an age such as 90s, 30m, 2h or 1.5d. Raises ValueError."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no age; write a number and s, m, h or d, such as 2h")
    return float(match[1]) * _UNITS_S[match[2]]


class WebhookRedelivery:
    """Reads the dead letters; each whose webhook still stands as failed begins anew."""

    def __init__(self, *, broker: Broker, states: WebhookStates, queue: WebhookQueue) -> None:
        self._broker = broker
        self._states = states
        self._queue = queue

    async def run(self, *, since_ms: int, until_ms: int) -> int:
        """Have the letters of [since, until) delivered again; how many. What was redelivered since is left alone.

        Raises BrokerError, TimeoutError, StoreError or InferenceError(UNAVAILABLE); run again, it goes on.
        """
        topic = self._queue.dead_topic
        partitions = range(await self._broker.learn(topic))
        positions = await self._broker.beginnings(topic, partitions)
        ends = await self._broker.ends(topic, partitions)
        count = 0
        while any(positions[partition] < ends[partition] for partition in partitions):
            records, positions = await self._some(positions)
            letters = [
                letter
                for record in records
                if record.offset < ends[record.partition]
                and (letter := _letter(record)) is not None
                and since_ms <= letter.dead_ms < until_ms
            ]
            for first in range(0, len(letters), _AT_A_TIME):
                count += sum(await asyncio.gather(*map(self._again, letters[first : first + _AT_A_TIME])))
        return count

    async def _some(self, positions: dict[int, int]) -> tuple[list[Record], dict[int, int]]:
        """The next records, as many as one fetch gives, and the positions after them."""
        follower = self._broker.follow(self._queue.dead_topic, positions)
        records: list[Record] = []
        moved = asyncio.Event()

        def take(got: Sequence[Record]) -> None:
            records.extend(got)

        def check() -> None:
            if follower.positions != positions:
                moved.set()

        reader = asyncio.create_task(follower.run(take, on_poll=check), name="dead letter reader")
        try:
            await moved.wait()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        return records, dict(follower.positions)

    async def _again(self, letter: WebhookDelivery) -> bool:
        state = await self._states.load(letter.origin, letter.epoch)
        if state is not None and (state.generation > letter.generation or state.stage is not WebhookStage.FAILED):
            return False
        await self._queue.put(letter.again(letter.generation + 1))
        _log.info("redeliver_webhook", origin=str(letter.origin), tenant=letter.tenant, error=letter.error)
        return True


def _letter(record: Record) -> WebhookDelivery | None:
    try:
        return decode_delivery(record.value)
    except InferenceError as error:
        _log.error("skip_dead_webhook", offset=record.offset, error=error.message)
        return None
