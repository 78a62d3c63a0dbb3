"""Instance: one thread per model copy; memory that lacks is remembered, and a thread that is stuck is given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from schemas.progress import Progress
from schemas.record import Envelope, Origin
from schemas.request import InferenceRequest
from schemas.tensor import Tensor
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.backend import OutOfMemory, TransientError
from workers.batch import assemble
from workers.batch_run import Batch, Finished, after_hanging
from workers.delivery import Delivery, Partition
from workers.instance import Instance, stuck_threads
from workers.model_config import ModelConfig
from workers.placement import Placement
from workers.work import Work

PATIENCE_S = 20.0
HANGS = -1.0
_CPU = Placement()


class Device:
    """Gives IN back as OUT. Hangs on the value HANGS until released; has memory for so many rows; may be away."""

    def __init__(self, *, memory_rows: int = 1 << 30, hang_in: str = "") -> None:
        self.memory_rows = memory_rows
        self.hang_in = hang_in
        self.is_away = False
        self.hanging = threading.Event()
        self.released = threading.Event()
        self.unloaded = threading.Event()
        self.ran: list[list[float]] = []

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        if self.hang_in == "load":
            self._hang()

    def warm_up(self) -> None:
        pass

    def infer(self, inputs: dict[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
        values = inputs["IN"][:, 0].tolist()
        self.ran.append(values)
        if HANGS in values:
            self._hang()
        if self.is_away:
            raise TransientError("the device is away")
        if len(values) > self.memory_rows:
            raise OutOfMemory("no memory")
        return {"OUT": inputs["IN"]}

    def unload(self) -> None:
        if self.hang_in == "unload":
            self._hang()
        self.unloaded.set()

    def _hang(self) -> None:
        self.hanging.set()
        assert self.released.wait(PATIENCE_S)


def work(number: int, value: float) -> Work:
    partition = Partition("t.infer.m", 0, AckTracker(Progress(0, 0)), BrokerClock())
    tensor = Tensor("IN", "FP32", (1, 1), np.array([value], np.float32).tobytes())
    delivery = Delivery(partition, Origin("t.infer.m", 0, number), 0, [], b"")
    return Work(delivery, Envelope(str(number)), InferenceRequest((tensor,)))


def batch_of(*values: float) -> Batch:
    works = [work(number, value) for number, value in enumerate(values)]
    return Batch(works, [1] * len(works), [7] * len(works), 8)


class Loaded:
    """An instance, loaded, and what it has told."""

    def __init__(self, device: Device, *, execution_timeout_ms: int = 0) -> None:
        spec = (TensorSpec("IN", "FP32", (1,)),)
        out = (TensorSpec("OUT", "FP32", (1,)),)
        config = ModelConfig("m", "device", 32, spec, out, execution_timeout_ms=execution_timeout_ms)
        self.instance = Instance(device, config, name="m/1#0")
        self.told: list[Finished] = []
        self._changed = asyncio.Event()

    def submit(self, batch: Batch) -> Batch:
        self.instance.submit(batch, assemble([w.request for w in batch.works], batch.total_rows), self._note)
        return batch

    async def finished(self, count: int) -> list[Finished]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.told) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.told

    def _note(self, finished: Finished) -> None:
        self.told.append(finished)
        self._changed.set()


@asynccontextmanager
async def loaded(device: Device, **settings: int) -> AsyncIterator[Loaded]:
    it = Loaded(device, **settings)
    await it.instance.load(Path())
    try:
        yield it
    finally:
        device.released.set()
        await it.instance.close()


async def happens(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


async def test_who_is_too_late_when_a_prepared_batch_begins_is_not_run_and_the_others_are() -> None:
    device = Device()
    async with loaded(device) as it:
        batch = batch_of(1, 2, 3, 4, 5)
        for late in (1, 4):
            batch.works[late].envelope = Envelope(str(late), deadline=Deadline(1))
        batch.works[0].envelope = Envelope("0", deadline=Deadline(1 << 60))
        it.submit(batch)
        [finished] = await it.finished(1)
        assert it.instance.durations.estimate_us(1) is None  # parts of a batch teach nothing
    assert device.ran == [[1], [3, 4]]
    assert finished.out_rows == 2
    assert batch.begun_us == finished.begun_us > 0
    assert [(part.first, part.count, part.outputs is None) for part in finished.parts] == [
        (0, 1, False),
        (1, 1, True),
        (2, 2, False),
        (4, 1, True),
    ]
    errors = [part.error for part in finished.parts if part.error is not None]
    assert [error.code for error in errors] == [ErrorCode.DEADLINE_EXCEEDED] * 2


async def test_memory_that_lacks_answers_everyone_and_lowers_the_ceiling_of_this_instance() -> None:
    device = Device(memory_rows=10)
    async with loaded(device) as it, loaded(Device()) as other:
        assert it.instance.ceiling.rows(0) == 32
        it.submit(batch_of(*range(32)))
        [finished] = await it.finished(1)
        assert all(part.outputs is not None for part in finished.parts)
        assert finished.out_of_memory_rows == [32, 16]
        assert finished.runs == 2 + 4
        assert it.instance.ceiling.rows(finished.ended_us) == 8
        assert other.instance.ceiling.rows(finished.ended_us) == 32


async def test_a_request_that_has_no_memory_alone_fails_as_such() -> None:
    async with loaded(Device(memory_rows=0)) as it:
        it.submit(batch_of(1))
        [finished] = await it.finished(1)
        assert isinstance(finished.parts[0].error, OutOfMemory)
        assert it.instance.ceiling.rows(finished.ended_us) == 1


async def test_a_device_that_is_away_is_told_for_the_whole_batch_after_one_run() -> None:
    device = Device()
    device.is_away = True
    async with loaded(device) as it:
        it.submit(batch_of(1, 2, 3))
        [finished] = await it.finished(1)
        [part] = finished.parts
        assert (part.is_transient, part.first, part.count, finished.runs) == (True, 0, 3, 1)
        assert it.instance.ceiling.rows(finished.ended_us) == 32


async def test_it_tells_since_when_a_call_runs_and_when_that_is_too_long() -> None:
    device = Device()
    async with loaded(device, execution_timeout_ms=250) as it:
        assert (it.instance.running_since_us, it.instance.overdue_us()) == (0, None)
        it.submit(batch_of(HANGS))
        await happens(device.hanging)
        since_us = it.instance.running_since_us
        assert since_us > 0
        assert it.instance.overdue_us() == since_us + 250_000
        device.released.set()
        await it.finished(1)
        assert (it.instance.running_since_us, it.instance.overdue_us()) == (0, None)


async def test_without_a_timeout_nothing_is_ever_overdue() -> None:
    device = Device()
    async with loaded(device) as it:
        it.submit(batch_of(HANGS))
        await happens(device.hanging)
        assert it.instance.overdue_us() is None


async def test_an_abandoned_instance_hands_back_what_it_had_and_is_heard_no_more() -> None:
    device = Device()
    before = stuck_threads()
    async with loaded(device) as it:
        done = it.submit(batch_of(1))
        await it.finished(1)
        running, waiting = it.submit(batch_of(2, HANGS)), it.submit(batch_of(3))
        await happens(device.hanging)
        abandoned = it.instance.abandon()
        assert abandoned.running is running
        [(batch, arrays)] = abandoned.waiting
        assert batch is waiting
        assert arrays["IN"].tolist() == [[3]]
        assert stuck_threads() == before + 1
        async with asyncio.timeout(PATIENCE_S):
            await it.instance.close()  # at once, although the thread is stuck
        again = it.instance.abandon()
        assert (again.running, again.waiting) == (None, [])
        device.released.set()
        await happens(device.unloaded)  # it has come back, and gives back what it holds
        await asyncio.sleep(0)  # what it has told the loop, if anything, has been heard now
        assert [finished.batch for finished in it.told] == [done]
        assert device.ran == [[1], [2, HANGS]]
    for thread in [thread for thread in threading.enumerate() if thread.name == "m/1#0"]:
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert stuck_threads() == before


async def test_what_had_ended_when_it_was_abandoned_is_told_all_the_same() -> None:
    """The thread's news may still be on its way when the loop decides: that batch must not be run again."""
    device = Device()
    async with loaded(device) as it:
        ended, running = it.submit(batch_of(1)), it.submit(batch_of(HANGS))
        assert device.hanging.wait(PATIENCE_S)  # blocks the loop on purpose: it has heard nothing of the first yet
        assert it.told == []
        abandoned = it.instance.abandon()
        assert (abandoned.running, abandoned.waiting) == (running, [])
        assert [finished.batch for finished in await it.finished(1)] == [ended]


async def test_an_instance_that_is_stuck_in_loading_can_be_abandoned() -> None:
    device = Device(hang_in="load")
    it = Loaded(device)
    loading = asyncio.create_task(it.instance.load(Path()))
    await happens(device.hanging)
    it.instance.abandon()
    with pytest.raises(InferenceError) as caught:
        await loading
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    device.released.set()
    await happens(device.unloaded)


async def test_a_close_that_waits_for_a_stuck_thread_returns_once_it_is_abandoned() -> None:
    device = Device()
    it = Loaded(device)
    await it.instance.load(Path())
    running = it.submit(batch_of(HANGS))
    await happens(device.hanging)
    closing = asyncio.create_task(it.instance.close())
    await asyncio.sleep(0)
    assert not closing.done()
    assert it.instance.abandon().running is running
    await closing
    device.released.set()
    await happens(device.unloaded)


async def test_a_model_that_ends_its_thread_ends_only_its_batch() -> None:
    class Exits(Device):
        def infer(self, inputs: dict[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
            if inputs["IN"][0, 0] == 1:
                raise SystemExit(1)
            return super().infer(inputs, outputs)

    async with loaded(Exits()) as it:
        it.submit(batch_of(1))
        it.submit(batch_of(2))
        first, second = await it.finished(2)
    assert first.parts[0].error is not None
    assert first.parts[0].error.code is ErrorCode.MODEL_FAILED
    assert second.parts[0].error is None


def test_a_batch_that_hangs_is_run_again_one_by_one_and_one_that_hangs_alone_has_failed() -> None:
    batch = batch_of(1, HANGS, 3)
    singles, error = after_hanging("m", batch, 500)
    assert error is None
    assert [single.works for single in singles] == [[work] for work in batch.works]
    assert all((single.rows, single.arrived_us, single.cut_us) == ([1], [7], 8) for single in singles)
    none, error = after_hanging("m", singles[1], 500)
    assert none == []
    assert error is not None
    assert error.code is ErrorCode.MODEL_FAILED
    assert "execution timeout of 500 ms" in error.message
