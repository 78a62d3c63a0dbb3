"""Scaling: the backlog as autoscalers read it, as JSON when asked and as a gauge. Never zero on doubt.

Knows no Kafka client and no autoscaler.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.backlog import Backlog
from gateway.catalogue import Catalogue
from gateway.metrics import Metrics
from schemas.errors import InferenceError
from schemas.topics import Topics

_log = structlog.get_logger(__name__)

_GAUGE_EVERY_S = 3.0


class ModelBacklog(msgspec.Struct, frozen=True):
    """A model's share of its pool's backlog, in records."""

    backlog: int


class PoolScale(msgspec.Struct, frozen=True):
    """What an autoscaler reads. `partitions`: more workers than this cannot share the work."""

    pool: str
    backlog: int
    models: dict[str, ModelBacklog]
    partitions: int


class Scaling:
    """The route /scaling/v1/pools/{pool} and the gauge tidegate_pool_backlog."""

    def __init__(self, *, backlog: Backlog, catalogue: Catalogue, topics: Topics, metrics: Metrics) -> None:
        self._backlog = backlog
        self._catalogue = catalogue
        self._topics = topics
        self._gauge = metrics.pool_backlog

    def routes(self) -> list[Route]:
        """What to mount."""
        return [Route("/scaling/v1/pools/{pool}", self._get, methods=["GET"])]

    async def read(self, pool: str) -> PoolScale:
        """The scale of a pool. Raises InferenceError as `Backlog.of_pool` does."""
        topics = await self._backlog.of_pool(pool)
        records = {topic: sum(partition.records for partition in partitions) for topic, partitions in topics.items()}
        models = {self._topics.model_of(topic): ModelBacklog(count) for topic, count in records.items()}
        return PoolScale(pool, sum(records.values()), models, sum(map(len, topics.values())))

    async def gauge_regularly(self) -> None:
        """For ever: set the gauge of each pool; the series of one that cannot be read is absent meanwhile."""
        shown: set[str] = set()
        while True:
            readable = set()
            for pool in self._catalogue.pools():
                try:
                    scale = await self.read(pool)
                except InferenceError as error:
                    if pool in shown:
                        _log.warning("backlog_unreadable", pool=pool, error=error.message)
                    continue
                self._gauge.labels(pool).set(scale.backlog)
                readable.add(pool)
                if pool not in shown:
                    _log.info("backlog_readable", pool=pool, backlog=scale.backlog)
            for pool in shown - readable:
                self._gauge.remove(pool)
            shown = readable
            await asyncio.sleep(_GAUGE_EVERY_S)

    async def _get(self, request: Request) -> Response:
        scale = await self.read(request.path_params["pool"])
        return Response(msgspec.json.encode(scale), media_type="application/json")
