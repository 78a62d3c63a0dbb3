"""Loader: brings one model version from the repository into memory, measures what it took, and takes it out again.

The runtime's library is imported while the files are fetched. Decides nothing about who may be loaded (model_cache.py).
Knows no Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from schemas.errors import InferenceError
from store.object_store import StoreError
from workers.backend import open_backend, preimport
from workers.instance import Instance
from workers.load_meter import LoadMeter
from workers.memory import DeviceMemory
from workers.memory_ledger import Bytes
from workers.metrics import MODEL_TAGS
from workers.model_config import ModelConfig
from workers.placement import Placement, placements
from workers.process_memory import give_back
from workers.repository import FetchedVersion, ModelRepository
from workers.resident import ModelKey

log = structlog.get_logger()

_RETRY_FIRST_S = 0.2
_RETRY_LAST_S = 5.0
_LOADS_AT_ONCE = 4  # in backends; fetching is bounded by the store
_GIVE_BACK_S = 10.0  # freed memory goes back to the machine at most so often: it takes a while


@dataclass(slots=True, eq=False)
class Loaded:
    """A loaded version: its files (pinned on disk), its instances, and the bytes it holds by device."""

    files: FetchedVersion
    instances: list[Instance]
    placed: list[Placement]
    used: dict[str, int] = field(default_factory=dict)


class Loader:
    """Loads and unloads. Lives on the event loop."""

    def __init__(
        self,
        repository: ModelRepository,
        memory: DeviceMemory,
    ) -> None:
        self._repository = repository
        self._gpus = memory.gpus
        self._cores = memory.cores
        self._readers = memory.readers
        self._meters: dict[str, LoadMeter[ModelKey]] = {device: LoadMeter() for device in memory.readers}
        self._known: dict[str, dict[str, int]] = {}  # measured bytes by digest of the files
        self._turns = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._gave_back_s = 0.0

    async def fetch(
        self,
        key: ModelKey,
        config: ModelConfig,
        *,
        on_need: Callable[[Bytes], None],
        on_progress: Callable[[float], None],
    ) -> FetchedVersion:
        """The version's files, pinned; while the object store is away or the disk is full, again and again: that
        says nothing of the model.

        `on_need` is told what the model is expected to hold before its first byte is fetched, and may raise.
        """
        loop = asyncio.get_running_loop()
        preimport(config.backend)

        def progress(done_bytes: int, total_bytes: int) -> None:
            if not done_bytes:
                on_need(self._estimate(config, total_bytes))
            loop.call_soon_threadsafe(on_progress, done_bytes / total_bytes if total_bytes else 1.0)

        retry_s = _RETRY_FIRST_S
        while True:
            try:
                return await asyncio.to_thread(self._repository.fetch, key.ref, on_progress=progress)
            except InferenceError as error:
                cause = error.__cause__
                if not (isinstance(cause, StoreError) and cause.retryable):
                    raise
                log.warning("fetch_model_again", model=str(key), cause=repr(cause))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_LAST_S)

    def expected(self, files: FetchedVersion, config: ModelConfig) -> dict[str, int]:
        """What a version will hold by device: as measured when it was last loaded here, else the size of its files."""
        return self._known.get(files.digest) or self._estimate(config, files.size_bytes)

    async def load(self, key: ModelKey, config: ModelConfig, files: FetchedVersion) -> Loaded:
        """Open all instances. Raises InferenceError(MODEL_LOAD_FAILED); then nothing is held but `files`."""
        async with self._turns:
            expected = self.expected(files, config)
            for device, meter in self._meters.items():
                meter.begin(key, expected_bytes=expected.get(device, 0), used_bytes=self._readers[device]())
            loaded = Loaded(files, [], list(placements(config, gpus=self._gpus, cores=self._cores)))
            try:
                await self._open_all(key, config, loaded)
            finally:
                measured = {
                    device: meter.end(key, used_bytes=self._readers[device]()) for device, meter in self._meters.items()
                }
        # Memory that a former model freed may be used again without the process growing: never less than the files.
        floor = self._estimate(config, files.size_bytes)
        loaded.used = {device: max(measured.get(device, 0), floor.get(device, 0)) for device in {*measured, *floor}}
        self._known[files.digest] = loaded.used
        for tag, value in config.metric_tags.items():
            MODEL_TAGS.labels(key.ref.name, tag, value).set(1)
        return loaded

    async def open_instance(
        self, key: ModelKey, config: ModelConfig, files: FetchedVersion, number: int, place: Placement
    ) -> Instance:
        """One more instance of a model that is loaded. Raises InferenceError(MODEL_LOAD_FAILED)."""
        instance = Instance(open_backend(config.backend), config, name=f"{key}#{number}", placement=place)
        try:
            await instance.load(files.path, files.warm_up_path)
        except InferenceError:
            await instance.close()
            raise
        except BaseException:  # nobody waits any more, and a thread cannot be stopped
            instance.abandon()
            raise
        return instance

    async def unload(self, loaded: Loaded) -> None:
        """Close the instances, give their memory back to the machine, and unpin the files."""
        await asyncio.gather(*(instance.close() for instance in loaded.instances))
        loaded.files.close()
        now_s = time.monotonic()
        if now_s - self._gave_back_s >= _GIVE_BACK_S:
            self._gave_back_s = now_s
            await asyncio.to_thread(give_back)

    async def _open_all(self, key: ModelKey, config: ModelConfig, loaded: Loaded) -> None:
        opened = await asyncio.gather(
            *(
                self.open_instance(key, config, loaded.files, number, place)
                for number, place in enumerate(loaded.placed)
            ),
            return_exceptions=True,
        )
        loaded.instances = [one for one in opened if isinstance(one, Instance)]
        failures = [one for one in opened if isinstance(one, BaseException)]
        if failures:
            await asyncio.gather(*(instance.close() for instance in loaded.instances))
            raise failures[0]

    def _estimate(self, config: ModelConfig, size_bytes: int) -> dict[str, int]:
        """Each instance holds the weights once, where it runs."""
        needs: dict[str, int] = {}
        for place in placements(config, gpus=self._gpus, cores=self._cores):
            device = f"gpu{place.gpu}" if place.kind == "gpu" else "cpu"
            needs[device] = needs.get(device, 0) + size_bytes
        return needs
