"""ModelCache: the models that are loaded in this process, each loaded once, on its first record.

Loading runs in threads: fetching in one of the pool, the backend in its instance's own. Other models go on meanwhile.
A failure frees everything and is told to everyone who waits; the next request tries again. Knows no Kafka.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

import structlog

from schemas.errors import InferenceError
from schemas.model import ModelRef
from store.object_store import StoreUnavailable
from workers.backend import open_backend
from workers.instance import Instance
from workers.metrics import LOAD_SECONDS, MODEL_STATE
from workers.model_config import ModelConfig
from workers.placement import placements
from workers.repository import FetchedVersion, ModelRepository

log = structlog.get_logger()

_RETRY_FIRST_S = 0.2
_RETRY_LAST_S = 5.0


class ModelCache:
    """Loaded models by name and version."""

    def __init__(self, repository: ModelRepository, configs: dict[str, ModelConfig]) -> None:
        """`configs` must be complete (see workers/repository.py)."""
        self._repository = repository
        self._configs = configs
        self._loads: dict[ModelRef, asyncio.Task[list[Instance]]] = {}
        self._fetched: dict[ModelRef, FetchedVersion] = {}

    def config(self, model: str) -> ModelConfig:
        """The configuration of a model."""
        return self._configs[model]

    async def instances(self, ref: ModelRef) -> list[Instance]:
        """The model's instances, loaded now if need be; concurrent callers share one load.

        Raises InferenceError(MODEL_LOAD_FAILED). Cancel-safe: the load goes on for whoever asks next.
        """
        load = self._loads.get(ref)
        if load is None:
            load = self._loads[ref] = asyncio.create_task(self._load(ref), name=f"load {ref}")
        try:
            return await asyncio.shield(load)
        except InferenceError:
            self._loads.pop(ref, None)
            raise

    async def close(self) -> None:
        """Unload everything; a load that is under way is waited for, since a thread cannot be stopped."""
        loads, self._loads = self._loads, {}
        for load in loads.values():
            with suppress(InferenceError):
                for instance in await load:
                    await instance.close()
        for fetched in self._fetched.values():
            fetched.close()

    async def _load(self, ref: ModelRef) -> list[Instance]:
        config = self._configs[ref.name]
        state = MODEL_STATE.labels(ref.name, ref.version)
        state.state("loading")
        begun_s = time.monotonic()
        instances: list[Instance] = []
        try:
            fetched = await self._fetch(ref)
            self._fetched[ref] = fetched
            for number, place in enumerate(placements(config, gpus=(), cores=len(os.sched_getaffinity(0)))):
                instance = Instance(open_backend(config.backend), config, name=f"{ref}#{number}", placement=place)
                instances.append(instance)
                await instance.load(fetched.path)
        except InferenceError:
            state.state("failed")
            for instance in instances:
                await instance.close()
            if ref in self._fetched:
                self._fetched.pop(ref).close()
            raise
        took_s = time.monotonic() - begun_s
        LOAD_SECONDS.labels(ref.name).observe(took_s)
        state.state("ready")
        log.info("load_model", model=str(ref), load_s=round(took_s, 3))
        return instances

    async def _fetch(self, ref: ModelRef) -> FetchedVersion:
        """The version's files; while the object store is away, again and again: that says nothing of the model."""
        retry_s = _RETRY_FIRST_S
        while True:
            try:
                return await asyncio.to_thread(self._repository.fetch, ref)
            except InferenceError as error:
                if not isinstance(error.__cause__, StoreUnavailable):
                    raise
                log.warning("fetch_model_again", model=str(ref))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_LAST_S)
