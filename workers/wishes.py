"""Wishes: what operators ask of this pool's models: to be loaded before their first request, or unloaded once idle.

A wish is no promise: memory decides, and a request loads what was unloaded. To load, no version means the default one;
to unload, all that are loaded. What fails is logged, and told as the model's state. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from schemas.errors import InferenceError
from schemas.tensor import Buffer
from schemas.wish import ModelWish, decode_wish
from workers.model_cache import ModelCache
from workers.served import ServedModels

log = structlog.get_logger()

_MAX_NOTED = 10_000  # models, the latest wish of each


class Wishes:
    """Lives on the event loop. Wishes are noted until `begin`, and fulfilled from then on."""

    def __init__(
        self, *, served: ServedModels, models: ModelCache, tasks: asyncio.TaskGroup, now_ms: Callable[[], int]
    ) -> None:
        self._served = served
        self._models = models
        self._tasks = tasks
        self._now_ms = now_ms
        self._noted: dict[str, ModelWish] = {}  # not begun with
        self._busy: set[str] = set()
        self._has_begun = False

    def apply(self, key: Buffer | None, value: Buffer | None) -> bool:
        """Take one control record in; False for other kinds of record."""
        told = decode_wish(key, value)
        if told is None:
            return False
        model, wish = told
        self._noted[model] = wish
        if len(self._noted) > _MAX_NOTED:
            self._noted.pop(next(iter(self._noted)))
        if self._has_begun:
            self._begin(model)
        return True

    def begin(self) -> None:
        """Fulfil what was noted, as far as it is recent: this worker may have been started for it."""
        self._has_begun = True
        for model in list(self._noted):
            self.look_at(model)

    def look_at(self, model: str) -> None:
        """A model is served from now on: somebody may have wished for it a moment ago."""
        wish = self._noted.get(model)
        if wish is not None and wish.is_recent(self._now_ms()):
            self._begin(model)

    def _begin(self, model: str) -> None:
        if model not in self._busy and self._served.of_model(model) is not None:
            self._busy.add(model)
            self._tasks.create_task(self._fulfil(model), name=f"wish for {model}")

    async def _fulfil(self, model: str) -> None:
        """One after the other: a wish that comes while one is fulfilled is the next."""
        try:
            while (wish := self._noted.pop(model, None)) is not None:
                log.info("fulfil_wish", model=model, action=wish.action, version=wish.version)
                if wish.action == "load":
                    await self._load(model, wish.version)
                else:
                    self._unload(model, wish.version)
        finally:
            self._busy.discard(model)

    async def _load(self, model: str, version: str) -> None:
        served = self._served.of_model(model)
        if served is None:
            return
        try:
            key = served.key(served.metadata.resolve(version))
            self._models.keep(key)
            (await self._models.acquire(key, served.config)).unpin()
        except InferenceError as error:
            log.error("wish_failed", model=model, version=version, error=error.message, remedy=error.remedy)

    def _unload(self, model: str, version: str) -> None:
        for key in self._models.loaded(model):
            if version in ("", key.ref.version):
                self._models.drop_when_idle(key)
