"""ModelCache: the model versions that are loaded in this process, each loaded once, on its first record.

An LRU by bytes: a load reserves memory before it allocates any, models that nobody uses make room for it, and one that
is used for long while others wait is asked to yield. Fetching runs in threads, the backend in its instance's own; other
models go on meanwhile. A failed load frees everything and is told to everyone who waits. Knows no Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from workers.instance import Instance
from workers.loader import Loaded, Loader
from workers.memory_ledger import Bytes, MemoryLedger
from workers.metrics import EVICTIONS, LOAD_SECONDS, MODEL_BYTES, MODEL_STATE
from workers.model_config import ModelConfig
from workers.resident import ModelKey, Resident

log = structlog.get_logger()

_PATIENCE_S = 0.5  # how long a load waits for room before a model in use is asked to yield, and then the next
_TURN_S = 2.0  # how long a loaded model may work, at least, before it is asked
# Loading small models is work for the CPU that serving needs too. So, where one must go for another to come, the next
# exchange waits for so many load times, and a load serves more of what has come together meanwhile; never longer than:
_PAUSE_LOADS = 5
_PAUSE_S = 1.0

# Told of a model's state (fetching, loading, ready, failed, cold), how much is fetched (0 to 1), and why it failed.
OnState = Callable[[ModelKey, str, float, str], None]


def _ignore_state(key: ModelKey, state: str, fetched_ratio: float, reason: str) -> None:
    """Nobody asked."""


class CapacityError(InferenceError):
    """The model needs more memory than the worker may use in all."""

    def __init__(self, key: ModelKey, device: str, need_bytes: int, budget_bytes: int) -> None:
        super().__init__(
            ErrorCode.MODEL_LOAD_FAILED,
            f"model {key} needs {need_bytes} bytes of {device} memory, the worker may use {budget_bytes}",
            field="model",
            value=str(key),
            remedy="raise model_memory_bytes, or serve the model from a pool of larger machines",
        )


@dataclass(slots=True, eq=False)
class _Load:
    task: asyncio.Task[Resident]
    waiters: int = 0
    waits_for_room: bool = False


class ModelCache:
    """Loaded model versions by key. Lives on the event loop."""

    def __init__(self, loader: Loader, *, budgets: Bytes, on_state: OnState = _ignore_state) -> None:
        """`budgets`: bytes by device ("cpu", "gpu0"); a device without one has no limit."""
        self._loader = loader
        self._ledger: MemoryLedger[ModelKey] = MemoryLedger(budgets)
        self._on_state = on_state
        self._residents: dict[ModelKey, Resident] = {}
        self._loaded: dict[ModelKey, Loaded] = {}
        self._loads: dict[ModelKey, _Load] = {}
        self._unwanted: set[ModelKey] = set()  # to be unloaded once nobody uses them
        self._dropping: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # of the one load that waits for room; the others wait behind it
        self._room = asyncio.Event()
        self._load_s = 0.0  # how long a load took lately
        self._next_exchange_s = 0.0

    async def acquire(self, key: ModelKey, config: ModelConfig) -> Resident:
        """The model version, pinned, loaded now if need be; concurrent callers share one load.

        Raises InferenceError(MODEL_LOAD_FAILED), its subclass CapacityError, or what the repository says. Cancel-safe:
        the load goes on for whoever asks next.
        """
        resident = self._residents.get(key)
        if resident is not None and resident.pin():
            return resident
        load = self._loads.get(key)
        if load is None:
            load = self._loads[key] = _Load(asyncio.create_task(self._load(key, config), name=f"load {key}"))
        load.waiters += 1  # the load pins once for each
        try:
            return await asyncio.shield(load.task)
        except asyncio.CancelledError:
            load.waiters -= 1
            if load.task.done() and not load.task.cancelled() and load.task.exception() is None:
                load.task.result().unpin()
            raise

    def remove(self, resident: Resident, instance: Instance) -> None:
        """An instance of a model that is pinned was abandoned: it is not unloaded any more."""
        number = resident.instances.index(instance)
        del resident.instances[number]
        resident.missing.append(resident.placed.pop(number))

    async def add_instance(self, resident: Resident) -> None:
        """Load an instance where one was removed. Raises InferenceError(MODEL_LOAD_FAILED); it may be tried again."""
        place = resident.missing[0]
        number = len(resident.instances)
        instance = await self._loader.open_instance(resident.key, resident.config, resident.files, number, place)
        resident.missing.remove(place)
        resident.placed.append(place)
        resident.instances.append(instance)

    async def drop(self, key: ModelKey) -> None:
        """Unload a model that nobody uses; nothing happens if somebody does, or if it is not there."""
        resident = self._residents.get(key)
        if resident is not None and not self._ledger.is_pinned(key):
            await self._evict(resident)

    def loaded(self, model: str) -> list[ModelKey]:
        """What is loaded of a model, or being loaded."""
        return [key for key in (*self._residents, *self._loads) if key.ref.name == model]

    def held_bytes(self) -> dict[ModelRef, int]:
        """What each version that is loaded holds in all, on all devices."""
        held: dict[ModelRef, int] = {}
        for key, loaded in self._loaded.items():
            held[key.ref] = held.get(key.ref, 0) + sum(loaded.used.values())
        return held

    def drop_when_idle(self, key: ModelKey) -> None:
        """Unload a model as soon as nobody uses it, at once if nobody does; a load of it that is under way ends first.

        It is loaded again when it is asked for.
        """
        if key in self._residents or key in self._loads:
            self._unwanted.add(key)
            self._drop_unwanted(key)

    def keep(self, key: ModelKey) -> None:
        """Forget that it was to be dropped."""
        self._unwanted.discard(key)

    def _drop_unwanted(self, key: ModelKey) -> None:
        if key in self._unwanted and key in self._residents and not self._ledger.is_pinned(key):
            task = asyncio.create_task(self._drop_now(key), name=f"drop {key}")
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _drop_now(self, key: ModelKey) -> None:
        if key in self._unwanted and not self._ledger.is_pinned(key):  # else it is in use again, or wanted
            self._unwanted.discard(key)
            await self.drop(key)

    async def close(self) -> None:
        """Unload everything; a load that is under way is waited for, since a thread cannot be stopped."""
        loads, self._loads = self._loads, {}
        for load in loads.values():
            if load.waits_for_room:
                load.task.cancel()
            with suppress(InferenceError, asyncio.CancelledError):
                await load.task
        for resident in list(self._residents.values()):
            await self._evict(resident)
        if self._dropping:
            await asyncio.wait(self._dropping)

    async def _load(self, key: ModelKey, config: ModelConfig) -> Resident:
        begun_s = time.monotonic()
        self._tell(key, "fetching", 0.0)
        try:
            old = self._residents.get(key)
            if old is not None:  # it was asked to yield, or is on its way out
                await self._evict(old)
            loaded = await self._load_within_budget(key, config)
        except BaseException as error:
            self._loads.pop(key, None)
            self._ledger.release(key)
            self._room.set()
            self._unwanted.discard(key)
            is_failure = isinstance(error, InferenceError)
            self._tell(key, "failed" if is_failure else "cold", 0.0, str(error) if is_failure else "")
            raise
        resident = Resident(
            key,
            config,
            files=loaded.files,
            instances=loaded.instances,
            placed=loaded.placed,
            since_s=time.monotonic(),
            on_use=self._note_use,
        )
        self._residents[key], self._loaded[key] = resident, loaded
        load = self._loads.pop(key, None)
        for _ in range(load.waiters if load is not None else 0):
            self._ledger.pin(key)
        self._ledger.unpin(key)  # the load's own
        self._room.set()
        took_s = time.monotonic() - begun_s
        LOAD_SECONDS.labels(key.ref.name).observe(took_s)
        self._tell(key, "ready", 1.0)
        log.info("load_model", model=str(key), load_s=round(took_s, 3), bytes=dict(loaded.used))
        self._drop_unwanted(key)
        return resident

    async def _load_within_budget(self, key: ModelKey, config: ModelConfig) -> Loaded:
        files = await self._loader.fetch(
            key,
            config,
            on_need=lambda needs: self._check_capacity(key, needs),
            on_progress=lambda done: self._tell(key, "fetching", done),
        )
        try:
            needs = self._loader.expected(files, config)
            self._check_capacity(key, needs)
            load = self._loads.get(key)
            if load is None:  # closed meanwhile
                raise asyncio.CancelledError
            load.waits_for_room = True
            await self._make_room(key, needs)
            load.waits_for_room = False
            self._tell(key, "loading", 1.0)
            begun_s = time.monotonic()
            loaded = await self._loader.load(key, config, files)
            self._load_s += 0.2 * (time.monotonic() - begun_s - self._load_s)
        except BaseException:
            files.close()
            raise
        self._ledger.settle(key, loaded.used)
        return loaded

    def _check_capacity(self, key: ModelKey, needs: Bytes) -> None:
        excess = self._ledger.excess(needs)
        if excess is not None:
            device, budget_bytes = excess
            raise CapacityError(key, device, needs[device], budget_bytes)

    async def _make_room(self, key: ModelKey, needs: Bytes) -> None:
        """Wait for one's turn and for the memory, then reserve it. Cancel-safe."""
        async with self._turn:  # first come, first served
            waiting_since_s = time.monotonic()
            has_paused = False
            while (victims := self._ledger.victims(needs)) != []:
                if victims and not has_paused:
                    await self._pause()
                    has_paused = True  # and look again: whoever was to go may be in use now
                elif victims:
                    await self._evict(self._residents[victims[0]])
                else:
                    if time.monotonic() - waiting_since_s >= _PATIENCE_S:
                        self._ask_one_back()
                    self._room.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PATIENCE_S):
                            await self._room.wait()
            self._ledger.reserve(key, needs)

    async def _pause(self) -> None:
        """Wait for the time of the next exchange. Cancel-safe."""
        await asyncio.sleep(max(0.0, self._next_exchange_s - time.monotonic()))
        self._next_exchange_s = time.monotonic() + min(_PAUSE_S, _PAUSE_LOADS * self._load_s)

    def _ask_one_back(self) -> None:
        """The model that has been at work for the longest, if it had its turn."""
        working = [
            resident
            for resident in self._residents.values()
            if self._ledger.is_pinned(resident.key) and not resident.is_wanted_back and not resident.is_gone
        ]
        longest = min(working, key=lambda resident: resident.since_s, default=None)
        if longest is not None and time.monotonic() - longest.since_s >= _TURN_S:
            log.info("ask_model_to_yield", model=str(longest.key))
            longest.ask_back()

    async def _evict(self, resident: Resident) -> None:
        """Unload, and free the memory. Nobody uses it, or nobody will get to use it again."""
        if resident.is_gone:  # it is under way
            while resident.key in self._loaded:
                self._room.clear()
                await self._room.wait()
            return
        resident.is_gone = True
        key = resident.key
        self._residents.pop(key)
        self._ledger.pin(key)  # nobody's victim any more
        await self._loader.unload(self._loaded[key])
        del self._loaded[key]
        self._ledger.release(key)
        EVICTIONS.labels(key.ref.name).inc()
        self._tell(key, "cold", 0.0)
        log.info("unload_model", model=str(key))
        self._room.set()

    def _note_use(self, resident: Resident, begins: bool) -> None:
        if resident.is_gone:
            return
        if begins:
            self._ledger.pin(resident.key)
            return
        self._ledger.unpin(resident.key)
        self._room.set()
        if self._unwanted:
            self._drop_unwanted(resident.key)

    def _tell(self, key: ModelKey, state: str, done: float, reason: str = "") -> None:
        MODEL_STATE.labels(key.ref.name, key.ref.version).state(state)
        for device, count in self._ledger.held.items():
            MODEL_BYTES.labels(device).set(count)
        self._on_state(key, state, done, reason)
