"""Pool: the models that one consumer group serves, made known: topics created, offsets set, models announced.

What a worker does before it serves, and all that `announce` does. Knows no Kafka client by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import structlog

from schemas.control import ModelAnnouncement, announcement_key, encode_announcement
from schemas.errors import ErrorCode, InferenceError
from schemas.topics import Topics
from store import StoreUnavailable, open_store
from workers.publisher import Publisher
from workers.repository import ModelRepository, RepositoryModel
from workers.served_config import config_told
from workers.settings import WorkerSettings
from workers.topics import RequestTopic, TopicAdmin

log = structlog.get_logger()

_MAX_ANNOUNCED_BYTES = 900_000  # a record holds 1 MiB with its overhead


class Pool:
    """The models of a pool and their request topics. Filled by `read` and `provision`, in that order."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.name = settings.pool
        self.topics = Topics(settings.prefix)
        self.repository = ModelRepository(
            open_store(settings.repository), cache=settings.cache, cache_bytes=settings.cache_bytes
        )
        self.models: dict[str, RepositoryModel] = {}
        self.request_topics: dict[str, RequestTopic] = {}

    async def names(self) -> list[str]:
        """The models that are to be served. Raises InferenceError(UNAVAILABLE) when the repository cannot be read."""
        return self._settings.models or await asyncio.to_thread(self.repository.list_models)

    async def read(self) -> None:
        """Read the models' configurations. A model that cannot be served is logged and left out.

        Raises InferenceError(UNAVAILABLE) when the repository cannot be read.
        """
        for name in await self.names():
            try:
                self.models[name] = await asyncio.to_thread(self.repository.read, name)
            except InferenceError as error:
                if isinstance(error.__cause__, StoreUnavailable):  # says nothing of the model
                    raise InferenceError(ErrorCode.UNAVAILABLE, error.message) from error
                log.error(
                    "leave_model_out",
                    model=name,
                    error=error.message,
                    field=error.field,
                    remedy=error.remedy,
                )
        if not self.models:
            log.warning("find_no_model", repository=self._settings.repository)

    async def provision(self) -> None:
        """Create missing topics and initial offsets of all models. Raises InferenceError(UNAVAILABLE)."""
        await self._provision(self.models)

    async def add(self, name: str, model: RepositoryModel) -> RequestTopic:
        """Take a new model in, or a new state of one, and create its topics. Raises InferenceError(UNAVAILABLE)."""
        self.models[name] = model
        await self._provision([name])
        return self.request_topics[name]

    async def announce(self, publisher: Publisher) -> int | None:
        """Tell the gateways, through the control topic, what this pool serves.

        Returns when the last announcement was appended by the broker's clock, in milliseconds; None if there was none.
        """
        appended_ms = None
        for name in self.models:
            appended_ms = await self.announce_one(publisher, name)
        return appended_ms

    async def announce_one(self, publisher: Publisher, name: str) -> int:
        """Tell of one model; as `announce`. Raises InferenceError(UNAVAILABLE)."""
        told = await asyncio.to_thread(self._announcement, name)
        return await publisher.append(self.topics.control, announcement_key(name), told)

    async def withdraw(self, publisher: Publisher, name: str) -> None:
        """Tell the gateways that a model is not served any more. Raises InferenceError(UNAVAILABLE)."""
        await publisher.append(self.topics.control, announcement_key(name), None)

    def _announcement(self, name: str) -> bytes:
        """Configuration and labels are left out where a record has no room for them."""
        topic, model = self.request_topics[name], self.models[name]
        bare = ModelAnnouncement(model.metadata, self.name, topic.name, topic.epoch, topic.partitions)
        config = config_told(model.config_text, model.config)
        for announcement in (
            msgspec.structs.replace(bare, config=config, labels=model.labels),
            msgspec.structs.replace(bare, config=config),
        ):
            told = encode_announcement(announcement)
            if len(told) <= _MAX_ANNOUNCED_BYTES:
                return told
            log.warning("announce_less", model=name, size_bytes=len(told), limit_bytes=_MAX_ANNOUNCED_BYTES)
        return encode_announcement(bare)

    async def _provision(self, models: Iterable[str]) -> None:
        admin = TopicAdmin(
            kafka=self._settings.kafka_connection(),
            topics=self.topics,
            partitions=self._settings.partitions,
            replication_factor=self._settings.replication_factor,
        )
        self.request_topics |= await asyncio.to_thread(admin.provision, models, pool=self.name)
