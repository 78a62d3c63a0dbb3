"""ModelUse: a lane's claim on its model: pinned in memory while there is work, asked for when it is not there.

A model that fails to load is tried again, later and later. Knows no queue and no requests, and no Kafka.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from schemas.errors import ErrorCode, InferenceError
from workers.instance import Instance
from workers.model_cache import CapacityError, ModelCache
from workers.model_config import ModelConfig, ModelConfigError
from workers.resident import ModelKey, Resident
from workers.retry import Backoff, Retry

log = structlog.get_logger()

_LOAD_RETRY = Retry(attempts=3, first_ms=500, last_ms=30_000)


class ModelUse:
    """Lives on the event loop. `load_begun_us` and `ready_us` are of the last load, by the monotonic clock."""

    def __init__(
        self,
        key: ModelKey,
        config: ModelConfig,
        *,
        models: ModelCache,
        tasks: asyncio.TaskGroup,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when the model is there, has failed to load, or is wanted back by the cache."""
        self._key = key
        self._config = config
        self._models = models
        self._tasks = tasks
        self._on_change = on_change
        self._resident: Resident | None = None  # pinned
        self._idle: Resident | None = None  # not pinned: it may be gone
        self._load: asyncio.Task[None] | None = None
        self._backoff = Backoff(_LOAD_RETRY)
        self._replacing: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._error: InferenceError | None = None  # of the last load, until the next one begins
        self._is_told = True
        self.load_begun_us = self.ready_us = 0

    @property
    def instances(self) -> list[Instance]:
        """Those to run on; none while the model is not pinned."""
        return self._resident.instances if self._resident is not None else []

    @property
    def is_wanted_back(self) -> bool:
        """Whether others wait for its memory: begin nothing, and `rest` once nothing runs."""
        return self._resident is not None and self._resident.is_wanted_back

    @property
    def next_try_us(self) -> int | None:
        """When `claim` should be called again for the next try to load; None: it has not failed."""
        return self._backoff.next_try_us if self._error is not None else None

    @property
    def is_failing(self) -> bool:
        """Whether loading has failed so often, or in such a way, that nobody should wait for ever."""
        error = self._error
        if error is None:
            return False
        is_final = isinstance(error, CapacityError | ModelConfigError) or error.code is ErrorCode.MODEL_NOT_FOUND
        return is_final or self._backoff.is_spent

    def take_failure(self) -> InferenceError | None:
        """Why the last load failed, once: for those who waited for it. Who comes later waits for the next try."""
        error = None if self._is_told else self._error
        self._is_told = True
        return error

    def claim(self, at_us: int) -> bool:
        """True when batches may be begun now; else the model is being loaded, or will be when it may be tried again."""
        if self._resident is not None:
            return not self._resident.is_wanted_back
        idle, self._idle = self._idle, None
        if idle is not None and idle.pin():
            self._take(idle)
            return True
        if self._load is None and not self._stopped and self._backoff.is_due(at_us):
            self._load = self._tasks.create_task(self._load_model(), name=f"lane {self._key}")
        return False

    def rest(self) -> None:
        """Nothing runs: the model may be unloaded if room is needed."""
        if self._resident is not None:
            self._idle, self._resident = self._resident, None
            self._idle.on_yield = None
            self._idle.unpin()

    def stop_loading(self) -> None:
        """Load nothing any more; a load that others wait for goes on."""
        self._stopped = True
        for task in (self._load, *self._replacing):
            if task is not None:
                task.cancel()

    def drop(self) -> None:
        """The model is not needed any more: unload it now."""
        self.rest()
        self._tasks.create_task(self._models.drop(self._key), name=f"drop {self._key}")

    def replace(self, instance: Instance) -> None:
        """Load another instance in place of an abandoned one, again and again until there is one."""
        assert self._resident is not None
        self._models.remove(self._resident, instance)
        if not self._resident.pin():  # others wait for its memory: it is loaded anew, and whole, when it comes back
            return
        task = self._tasks.create_task(self._replace(self._resident), name=f"replace an instance of {self._key}")
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    def _take(self, resident: Resident) -> None:
        self._resident = resident
        resident.on_yield = self._on_change

    async def _load_model(self) -> None:
        self.load_begun_us = _now_us()
        self._error = None
        try:
            self._take(await self._models.acquire(self._key, self._config))
        except InferenceError as error:
            self._backoff.note_failure(_now_us(), random.random())
            self._error, self._is_told = error, False
            log.warning("load_model_failed", model=str(self._key), error=error.message, failures=self._backoff.failures)
        else:
            self._backoff.note_success()
            self.ready_us = _now_us()
        finally:
            self._load = None
        self._on_change()

    async def _replace(self, resident: Resident) -> None:
        failures = 0
        try:
            while not self._stopped:
                try:
                    await self._models.add_instance(resident)
                    break
                except InferenceError as error:
                    failures += 1
                    log.warning("replace_instance_failed", model=str(self._key), error=error.message)
                    await asyncio.sleep(_LOAD_RETRY.pause_ms(failures, random.random()) / 1000)
        finally:
            resident.unpin()
        self._on_change()


def _now_us() -> int:
    return time.monotonic_ns() // 1000
