"""QueueWatch: a queue is known while it is read, and its rate only after workers have been busy for a while."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.admission import Queue
from gateway.queue_watch import QueueWatch
from gateway.tenant_queues import TenantQueues
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.progress import Progress

MODEL = ModelAnnouncement(ModelMetadata("m", ("1",), "p", 8, (), ()), "p", "t.infer.m", 7, 1)


class Site:
    """A pool `p` with the model `m`: the backlog, the rate and the clock are this test's."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.records = 0
        self.rate: float | None = 20.0
        self.fails = False
        self.reads = 0
        self.committed = 0
        self.is_served = True
        self.queued = TenantQueues(lambda tenant: 10)
        self.watch = QueueWatch(
            backlog=self,  # type: ignore[arg-type]  # what is asked of it is here
            catalogue=self,  # type: ignore[arg-type]  # likewise
            rates=self,
            queued=self.queued,
            now_s=lambda: self.now_s,
        )

    def model(self, name: str) -> Any:
        if name != "m" or not self.is_served:
            raise InferenceError(ErrorCode.MODEL_NOT_FOUND, name)
        return MODEL

    def pool(self, pool: str) -> tuple[ModelAnnouncement, ...]:
        return (MODEL,) if self.is_served else ()

    async def of_pool(self, pool: str) -> Any:
        self.reads += 1
        if self.fails:
            raise InferenceError(ErrorCode.UNAVAILABLE, "away")
        return {
            "t.infer.m": [type("Partition", (), {"records": self.records, "progress": Progress(self.committed, 0)})]
        }

    def per_s(self, model: str, now_ms: int) -> float | None:
        return self.rate

    async def read(self, queue_records: int) -> Queue | None:
        """Let it be read once; what is known then."""
        self.records = queue_records
        self.watch.queue_of("m")
        reads = self.reads
        async with asyncio.timeout(5):
            while self.reads == reads:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)
        return self.watch.queue_of("m")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.queue_watch._READ_EVERY_S", 0.001)


async def test_a_queue_is_known_once_it_was_read_and_for_a_few_seconds() -> None:
    site = Site()
    assert site.watch.queue_of("m") is None
    assert site.watch.queue_of("unknown") is None
    running = asyncio.create_task(site.watch.run())
    assert await site.read(7) == Queue(7, None, 0.0)
    running.cancel()
    site.now_s += 4
    assert site.watch.queue_of("m") == Queue(7, None, 4.0)
    site.now_s += 2
    assert site.watch.queue_of("m") is None


async def test_the_rate_of_workers_that_had_nothing_to_do_says_nothing() -> None:
    site = Site()
    running = asyncio.create_task(site.watch.run())
    for step, records in enumerate((5, 9, 4, 8, 3)):
        site.now_s = 100.0 + 2 * step
        queue = await site.read(records)
        assert queue is not None
        assert queue.rate_rps == (20.0 if step >= 3 else None)
    site.now_s += 2
    assert await site.read(0) == Queue(0, None, 0.0)
    site.now_s += 2
    assert await site.read(50) == Queue(50, None, 0.0)  # it begins anew
    running.cancel()


async def test_what_cannot_be_read_is_unknown_and_reading_goes_on() -> None:
    site = Site()
    running = asyncio.create_task(site.watch.run())
    site.fails = True
    assert await site.read(7) is None
    site.fails = False
    assert await site.read(7) == Queue(7, None, 0.0)
    running.cancel()


async def test_while_nobody_asks_nothing_is_read() -> None:
    site = Site()
    running = asyncio.create_task(site.watch.run())
    await site.read(1)
    site.now_s += 10
    await asyncio.sleep(0.02)
    reads = site.reads
    await asyncio.sleep(0.02)  # twenty times the pace: that nothing happens can only be waited for
    assert site.reads == reads
    running.cancel()


async def test_while_a_tenant_has_something_queued_it_is_read_on() -> None:
    site = Site()
    site.queued.put("a", MODEL, (0, 0, 0))
    running = asyncio.create_task(site.watch.run())
    await site.read(1)
    site.now_s += 100  # nobody asks any more
    site.committed = 1
    async with asyncio.timeout(5):
        while site.queued.count("a"):  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.001)
    running.cancel()


async def test_what_is_queued_for_a_model_that_is_gone_counts_no_more() -> None:
    site = Site()
    site.queued.put("a", MODEL, (0, 0, 0))
    site.watch.queue_of("m")
    site.is_served = False
    running = asyncio.create_task(site.watch.run())
    async with asyncio.timeout(5):
        while site.queued.count("a"):  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.001)
    running.cancel()
