"""Reading a pool's backlog: shared, cached, and for single jobs served old while it is read anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from gateway import backlog as module
from gateway.backlog import Backlog
from gateway.broker import Broker, PartitionState
from gateway.catalogue import Catalogue
from gateway.kafka_client import BrokerError, Commit
from schemas.control import ModelAnnouncement, announcement_key, encode_announcement
from schemas.errors import InferenceError
from schemas.model import ModelMetadata
from schemas.topics import Topics


class FakeBroker:
    """Tells a committed offset, when it is let; counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.committed = 0
        self.fails = False
        self.free = asyncio.Event()
        self.free.set()

    async def states(self, group: str, topics: Sequence[str]) -> dict[str, tuple[PartitionState, ...]]:
        self.asked += 1
        await self.free.wait()
        if self.fails:
            raise BrokerError("away")
        return {topic: (PartitionState(0, Commit(self.committed, ""), 100),) for topic in topics}


class Clock:
    """Monotonic time, set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def backlog_of(broker: FakeBroker, *, cache_ms: int = 200) -> Backlog:
    catalogue = Catalogue()
    model = ModelAnnouncement(ModelMetadata("m", ("1",), "echo", 0, (), ()), "pool", "t.infer.m", 1, 1)
    catalogue.apply(announcement_key("m"), encode_announcement(model))
    return Backlog(broker=cast(Broker, broker), catalogue=catalogue, topics=Topics("t"), cache_ms=cache_ms)


async def committed(backlog: Backlog, *, may_be_old: bool = False) -> int:
    return (await backlog.of_pool("pool", may_be_old=may_be_old))["t.infer.m"][0].progress.committed


async def test_readers_share_a_read_and_later_ones_its_result(clock: Clock) -> None:
    broker = FakeBroker()
    backlog = backlog_of(broker)
    assert await asyncio.gather(*(committed(backlog) for _ in range(100))) == [0] * 100
    clock.now_s += 0.19
    await committed(backlog)
    assert broker.asked == 1
    clock.now_s += 0.02
    await committed(backlog)
    assert broker.asked == 2


async def test_a_single_jobs_reader_never_waits_for_a_read_that_is_not_needed(clock: Clock) -> None:
    broker = FakeBroker()
    backlog = backlog_of(broker)
    await committed(backlog)
    clock.now_s += 1.5
    broker.free.clear()
    broker.committed = 7
    assert await committed(backlog, may_be_old=True) == 0  # at once, and it is read anew
    await asyncio.sleep(0)
    assert broker.asked == 2
    scaler = asyncio.ensure_future(committed(backlog))
    await asyncio.sleep(0)
    assert not scaler.done()  # a scaler is told nothing old
    broker.free.set()
    assert await scaler == 7
    assert await committed(backlog, may_be_old=True) == 7


async def test_what_is_too_old_is_waited_for(clock: Clock) -> None:
    broker = FakeBroker()
    backlog = backlog_of(broker)
    await committed(backlog)
    clock.now_s += 2.1
    broker.committed = 7
    assert await committed(backlog, may_be_old=True) == 7


async def test_without_a_cache_nothing_is_old(clock: Clock) -> None:
    broker = FakeBroker()
    backlog = backlog_of(broker, cache_ms=0)
    await committed(backlog, may_be_old=True)
    broker.committed = 7
    assert await committed(backlog, may_be_old=True) == 7


async def test_doubt_is_an_error_and_the_next_reader_tries_again(clock: Clock) -> None:
    broker = FakeBroker()
    backlog = backlog_of(broker)
    broker.fails = True
    with pytest.raises(InferenceError, match="cannot be read"):
        await committed(backlog, may_be_old=True)
    broker.fails = False
    assert await committed(backlog) == 0
