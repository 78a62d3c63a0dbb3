"""RepositoryWatch: notices what has changed in the repository and exchanges it, without a failed request.

A new version is loaded before the old one stops being the answer; one that does not load leaves the old one serving,
and is not tried again until it changes. Where there is no old one yet, as in a worker that has just started, the next
lower version that the repository has is served instead. Knows no Kafka client and no store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from schemas.errors import InferenceError
from store import StoreUnavailable
from workers.model_cache import ModelCache
from workers.pool import Pool
from workers.repository import RepositoryModel
from workers.resident import ModelKey
from workers.served import ServedModel, ServedModels

log = structlog.get_logger()


class RepositoryWatch:
    """Looks every `every_s` seconds. Lives on the event loop."""

    def __init__(
        self,
        pool: Pool,
        *,
        served: ServedModels,
        models: ModelCache,
        on_new: Callable[[str], Awaitable[None]],
        on_changed: Callable[[str], Awaitable[None]],
        on_gone: Callable[[str], Awaitable[None]],
        every_s: float,
    ) -> None:
        """`on_new` is called with the name of a model that is served from now on, `on_changed` of one exchanged,
        `on_gone` of one that the repository does not have any more.
        """
        self._pool = pool
        self._served = served
        self._models = models
        self._on_new = on_new
        self._on_changed = on_changed
        self._on_gone = on_gone
        self._every_s = every_s
        self._seen = {name: model.fingerprint for name, model in pool.models.items()}

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.look()

    async def look(self) -> None:
        """Look once. A repository that cannot be read, and a model that cannot be served, are logged."""
        try:
            names = await self._pool.names()
            for name in names:
                await self._look_at(name)
            for name in [name for name in self._pool.models if name not in names]:
                await self._part_with(name)
        except InferenceError as error:
            log.warning("watch_repository_failed", error=error.message)

    async def fall_back(self, key: ModelKey) -> bool:
        """A version does not load: serve the model without it. False: it is not the default, or there is no other."""
        name = key.ref.name
        topic = self._pool.request_topics[name].name
        served = self._served.of_topic(topic)
        if served.key(served.metadata.versions[-1]) != key:
            return False
        try:
            model = await asyncio.to_thread(self._pool.repository.read, name, without={key.ref.version})
        except InferenceError:
            return False
        log.error("fall_back", model=name, instead_of=key.ref.version, versions=model.versions)
        self._pool.models[name] = model
        self._served.put(topic, served_model(model))
        await self._on_changed(name)
        return True

    async def _look_at(self, name: str) -> None:
        repository = self._pool.repository
        try:
            fingerprint = await asyncio.to_thread(repository.fingerprint, name)
            if fingerprint == self._seen.get(name):
                return
            model = await asyncio.to_thread(repository.read, name)
            if name in self._pool.models:
                await self._exchange(name, model)
            else:
                await self._pool.add(name, model)
                self._served.put(self._pool.request_topics[name].name, served_model(model))
                await self._on_new(name)
                log.info("add_model", model=name, versions=model.versions)
        except InferenceError as error:
            if isinstance(error.__cause__, StoreUnavailable):  # says nothing of the model: look again
                raise
            log.error("keep_model_as_it_is", model=name, error=error.message, field=error.field, remedy=error.remedy)
        self._seen[name] = fingerprint

    async def _part_with(self, name: str) -> None:
        """Nobody is to send anything to a model that is gone. What has been sent is still answered."""
        await self._on_gone(name)
        del self._pool.models[name]
        self._seen.pop(name, None)
        log.warning("part_with_model", model=name)

    async def _exchange(self, name: str, model: RepositoryModel) -> None:
        """Load the new state, then serve it. Raises InferenceError when it does not load."""
        topic = self._pool.request_topics[name].name
        new, old = served_model(model), self._served.of_topic(topic)
        key = new.key(new.metadata.versions[-1])
        if key not in old.keys:
            resident = await self._models.acquire(key, new.config)
            resident.unpin()
        self._pool.models[name] = model
        self._served.put(topic, new)
        await self._on_changed(name)
        log.info("exchange_model", model=name, versions=model.versions)


def served_model(model: RepositoryModel) -> ServedModel:
    """A model of the repository as it is served."""
    return ServedModel(model.config, model.metadata, model.fingerprints, model.labels)
