"""Repository without Kafka: what a wish waits for, whoever comes and goes meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.caller import ANYONE, Caller
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.repository import Repository
from schemas.control import ModelAnnouncement, announcement_key, encode_announcement
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.topics import Topics
from schemas.wish import ModelWish, decode_wish
from schemas.worker_report import ModelStatistics, WorkerReport, encode_report, report_key


class Site:
    """A repository with one model of pool p, and what it has written."""

    def __init__(self) -> None:
        self.wishes: list[ModelWish] = []
        self.written = asyncio.Event()
        self.fleet = Fleet()
        catalogue = Catalogue()
        announcement = ModelAnnouncement(ModelMetadata("m", ("1",), "x", 0, (), ()), "p", "t.infer.m", 1, 1)
        catalogue.apply(announcement_key("m"), encode_announcement(announcement))
        catalogue.complete = True
        parts: Any = {"broker": self, "audit": self}
        self.repository = Repository(**parts, topics=Topics("t"), catalogue=catalogue, fleet=self.fleet)

    async def append(self, topic: str, key: bytes, value: bytes) -> None:
        wish = decode_wish(key, value)
        assert wish is not None
        self.wishes.append(wish[1])
        self.written.set()

    @asynccontextmanager
    async def of(self, *said: object, **more: object) -> AsyncIterator[None]:
        yield

    def tell(self, worker: str, state: str, reason: str = "") -> None:
        now_ms = time.time_ns() // 1_000_000
        report = WorkerReport("p", "serving", 1, now_ms, models=(ModelStatistics("m", "1", state, reason),))
        self.fleet.apply(report_key(worker), encode_report(report))

    async def load(self) -> str:
        return await self.repository.load("m", caller=ANYONE, origin="here")


async def test_a_load_is_over_when_all_workers_have_it_and_who_goes_holds_up_none() -> None:
    site = Site()
    for worker in ("a", "b", "c"):
        site.tell(worker, "unloaded")
    load = asyncio.ensure_future(site.load())
    await site.written.wait()
    site.tell("a", "ready")
    site.tell("b", "loading")
    site.fleet.apply(report_key("c"), None)
    await asyncio.sleep(0)
    assert not load.done()
    site.tell("b", "ready")
    assert await load == "loaded by 3 workers"


async def test_a_failure_of_before_the_wish_is_none_of_its_own() -> None:
    site = Site()
    site.tell("a", "failed", "of an earlier try")
    load = asyncio.ensure_future(site.load())
    await site.written.wait()
    await asyncio.sleep(0)
    assert not load.done()
    site.tell("a", "failed", "no such operator")
    with pytest.raises(InferenceError, match="no such operator") as caught:
        await load
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED


async def test_an_unload_does_not_wait_for_who_is_gone() -> None:
    site = Site()
    for worker in ("a", "b"):
        site.tell(worker, "ready")
    unload = asyncio.ensure_future(site.repository.unload("m", caller=ANYONE, origin="here"))
    await site.written.wait()
    site.fleet.apply(report_key("a"), None)
    await asyncio.sleep(0)
    assert not unload.done()
    site.tell("b", "unloaded")
    assert await unload == "unloaded by 2 workers"
    assert [(wish.action, wish.version) for wish in site.wishes] == [("unload", "")]


async def test_who_may_not_manage_wishes_nothing() -> None:
    site = Site()
    with pytest.raises(InferenceError) as caught:
        await site.repository.load("m", caller=Caller("", "reader", ("read:*",)), origin="here")
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert site.wishes == []
