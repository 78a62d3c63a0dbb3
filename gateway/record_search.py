"""RecordSearch: finds requests in Kafka by their ids, where nobody remembers their places: their gateway has died.

Reads a model's topic from shortly before the request was made to shortly after it must have been taken. Knows no route
and no Kafka client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gateway.broker import Broker
from gateway.idempotency_key import KeyClaim
from gateway.job_id import Job, encode_job_id
from gateway.kafka_client import BrokerError, Record
from gateway.key_claims import LEASE_MS
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.topics import Topics

_log = structlog.get_logger(__name__)

_SKEW_MS = 30_000  # by which a gateway's clock may differ from the broker's
_TIMEOUT_S = 15.0


class RecordSearch:
    """Looks requests up."""

    def __init__(self, *, broker: Broker, topics: Topics, job_key: bytes) -> None:
        self._broker = broker
        self._topics = topics
        self._job_key = job_key

    async def find(self, model: ModelAnnouncement, claims: Sequence[KeyClaim], tenant: str) -> dict[str, str]:
        """The job ids of the requests under these claims, earliest first: by what follows the claim's id and a dot in
        theirs, "" for the id itself. A request that waited for its answer must have asked for it to be stored.

        Raises InferenceError(UNAVAILABLE) when that cannot be told in time.
        """
        found: dict[str, str] = {}
        wanted = {claim.id for claim in claims}

        def take(records: Sequence[Record]) -> None:
            for record in records:
                name = next((value for header, value in record.headers if header == "ce_id"), b"").decode()
                id_, _, part = name.partition(".")
                if id_ in wanted:
                    found.setdefault(part, self._job_id(model, record, tenant))

        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._read(model.topic, claims[0].at_ms - _SKEW_MS, claims[-1].at_ms + LEASE_MS + _SKEW_MS, take)
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"whether this request was taken before cannot be read from Kafka: {cause!r}",
                remedy="send it again in a moment, with the same key",
            ) from cause
        _log.info("search_requests", ids=sorted(wanted), topic=model.topic, found=len(found))
        return found

    async def _read(self, topic: str, first_ms: int, last_ms: int, take: Callable[[Sequence[Record]], None]) -> None:
        partitions = range(await self._broker.learn(topic))
        first = await self._broker.offsets_at(topic, partitions, first_ms)
        ends = await self._broker.offsets_at(topic, partitions, last_ms)
        positions = {partition: offset for partition, offset in first.items() if offset < ends[partition]}
        if not positions:
            return
        # Records that arrive behind the end meanwhile are taken, too: ids are unique.
        follower = self._broker.follow(topic, positions)
        read = asyncio.Event()

        def check() -> None:
            if all(follower.positions[partition] >= ends[partition] for partition in positions):
                read.set()

        reader = asyncio.get_running_loop().create_task(follower.run(take, on_poll=check), name="search requests")
        try:
            await read.wait()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _job_id(self, model: ModelAnnouncement, record: Record, tenant: str) -> str:
        name = self._topics.model_of(model.topic)
        job = Job(name, model.epoch, record.partition, record.offset, record.timestamp)
        return encode_job_id(job, key=self._job_key, tenant=tenant)
