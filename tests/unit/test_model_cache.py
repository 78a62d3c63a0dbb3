"""The model cache over a real directory repository and real instances with their threads."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from store import open_store
from workers.loader import Loader
from workers.memory import DeviceMemory
from workers.model_cache import CapacityError, ModelCache
from workers.model_config import ModelConfig
from workers.repository import ModelRepository
from workers.resident import ModelKey, Resident

_MODEL = """
backend: "python" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }}
{more}
"""


class Shelf:
    """A repository of models of given sizes, and a cache over it; `states` is what the cache told."""

    def __init__(self, directory: Path, *, budget: int) -> None:
        self.directory = directory
        self.repository = ModelRepository(open_store(str(directory / "models")), cache=directory / "cache")
        self.states: list[tuple[str, str]] = []
        self._told = asyncio.Event()
        loader = Loader(self.repository, DeviceMemory({}, {}, cores=2))
        self.cache = ModelCache(loader, budgets={"cpu": budget}, on_state=self._note)
        self.configs: dict[str, ModelConfig] = {}

    def _note(self, key: ModelKey, state: str, done: float, reason: str) -> None:
        if self.states[-1:] != [(key.ref.name, state)]:
            self.states.append((key.ref.name, state))
            self._told.set()

    async def until(self, name: str, state: str) -> None:
        while (name, state) not in self.states:
            self._told.clear()
            await self._told.wait()

    def add(self, name: str, size_bytes: int, more: str = "") -> None:
        version = self.directory / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "weights").write_bytes(bytes(size_bytes))
        text = _MODEL.format(more=more).replace("python", "device")
        (version.parent / "config.pbtxt").write_text(text)
        self.configs[name] = self.repository.read(name).config

    async def acquire(self, name: str) -> Resident:
        return await self.cache.acquire(ModelKey(ModelRef(name, "1")), self.configs[name])

    def resident(self) -> set[str]:
        return {key.ref.name for key in self.cache._residents}

    def of(self, name: str) -> list[str]:
        return [state for model, state in self.states if model == name]


@pytest.fixture
def shelf(tmp_path: Path) -> Callable[..., Shelf]:
    (tmp_path / "models").mkdir()
    return lambda budget: Shelf(tmp_path, budget=budget)


async def test_a_model_larger_than_the_budget_is_refused_before_anything_is_loaded(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    models.add("small", 60_000)
    models.add("large", 150_000)
    resident = await models.acquire("small")
    with pytest.raises(CapacityError) as caught:
        await models.acquire("large")
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    assert models.of("large") == ["fetching", "failed"]
    assert models.resident() == {"small"}
    resident.unpin()
    await models.cache.close()


async def test_an_idle_model_makes_room_and_the_least_recently_used_goes_first(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    for name in "abc":
        models.add(name, 40_000)
    for name in ("a", "b", "a"):
        (await models.acquire(name)).unpin()
    (await models.acquire("c")).unpin()
    assert models.resident() == {"a", "c"}
    assert models.of("b") == ["fetching", "loading", "ready", "cold"]
    await models.cache.close()
    assert models.resident() == set()


async def test_a_model_in_use_stays_until_it_is_idle_and_the_next_load_succeeds_unaided(
    shelf: Callable[..., Shelf],
) -> None:
    models = shelf(100_000)
    models.add("a", 60_000)
    models.add("b", 60_000)
    a = await models.acquire("a")
    waiting = asyncio.create_task(models.acquire("b"))
    await models.until("b", "fetching")
    assert models.resident() == {"a"}
    a.unpin()
    (await waiting).unpin()
    assert models.resident() == {"b"}
    assert not a.pin()
    await models.cache.close()


async def test_fifty_callers_share_one_load(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    models.add("a", 10)
    residents = await asyncio.gather(*(models.acquire("a") for _ in range(50)))
    assert len({id(resident) for resident in residents}) == 1
    assert models.of("a").count("loading") == 1
    for resident in residents[1:]:
        resident.unpin()
    assert models.cache._ledger.is_pinned(residents[0].key)
    residents[0].unpin()
    assert not models.cache._ledger.is_pinned(residents[0].key)
    await models.cache.close()


async def test_ten_thousand_uses_of_a_loaded_model_load_nothing(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    models.add("a", 10)
    (await models.acquire("a")).unpin()
    told = len(models.states)
    for _ in range(10_000):
        (await models.acquire("a")).unpin()
    assert len(models.states) == told
    await models.cache.close()


async def test_a_caller_that_is_cancelled_leaves_the_load_to_the_others_and_holds_no_pin(
    shelf: Callable[..., Shelf],
) -> None:
    models = shelf(100_000)
    models.add("a", 10, 'parameters { key: "load_ms" value { string_value: "50" } }')
    first, second = asyncio.create_task(models.acquire("a")), asyncio.create_task(models.acquire("a"))
    await models.until("a", "loading")
    first.cancel()
    resident = await second
    resident.unpin()
    assert not models.cache._ledger.is_pinned(resident.key)
    await models.cache.close()


async def test_memory_for_one_and_two_models_in_turn_never_meet_a_closed_model(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    models.add("a", 60_000)
    models.add("b", 60_000)

    async def use(name: str) -> None:
        for _ in range(10):
            resident = await models.acquire(name)
            assert not resident.is_gone
            await asyncio.sleep(0)
            assert resident.instances
            assert models.cache._ledger.held["cpu"] <= 100_000
            assert not resident.is_gone
            resident.unpin()

    await asyncio.gather(use("a"), use("b"))
    await models.cache.close()
    assert models.cache._ledger.held["cpu"] == 0


async def test_a_failed_load_frees_everything_and_the_next_one_tries_again(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    bad = 'parameters { key: "load_ms" value { string_value: "soon" } }'
    models.add("bad", 60_000, bad)
    threads = threading.active_count()
    for _ in range(20):
        with pytest.raises(InferenceError, match="load_ms"):
            await models.acquire("bad")
    assert models.cache._ledger.held["cpu"] == 0
    models.configs["bad"] = models.configs["bad"].__class__(
        **{field: getattr(models.configs["bad"], field) for field in ("name", "backend", "inputs", "outputs")}
    )
    (await models.acquire("bad")).unpin()
    await models.cache.close()
    assert threading.active_count() <= threads + 4  # those of asyncio's own pool stay


async def test_a_slow_load_does_not_hold_up_another(
    shelf: Callable[..., Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr("workers.backends.device._occupy", lambda wait_ms: may_end.wait() if wait_ms == 1 else None)
    models = shelf(1_000_000)
    models.add("slow", 10, 'parameters { key: "load_ms" value { string_value: "1" } }')
    models.add("quick", 10)
    slow = asyncio.create_task(models.acquire("slow"))
    await models.until("slow", "loading")
    (await models.acquire("quick")).unpin()
    assert not slow.done()
    may_end.set()
    (await slow).unpin()
    await models.cache.close()


async def test_who_works_for_long_while_another_waits_is_asked_to_yield_and_comes_back(
    shelf: Callable[..., Shelf], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.model_cache._PATIENCE_S", 0.01)
    monkeypatch.setattr("workers.model_cache._TURN_S", 0.0)
    models = shelf(100_000)
    models.add("a", 60_000)
    models.add("b", 60_000)
    a = await models.acquire("a")
    asked = asyncio.Event()
    a.on_yield = asked.set
    b = asyncio.create_task(models.acquire("b"))
    await asked.wait()
    assert not a.pin()
    again = asyncio.create_task(models.acquire("a"))
    a.unpin()
    (await b).unpin()
    a = await again
    assert a.pin()
    await models.cache.close()


async def test_twenty_rounds_of_loading_and_unloading_leave_no_thread_and_no_model(shelf: Callable[..., Shelf]) -> None:
    models = shelf(100_000)
    models.add("a", 60_000)
    models.add("b", 60_000)
    residents = []
    for _ in range(20):
        for name in "ab":
            resident = await models.acquire(name)
            residents.append(weakref.ref(resident))
            resident.unpin()
            del resident
    await models.cache.close()
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("a/1", "b/1"))]
    assert [alive() for alive in residents if alive() is not None] == []
