"""Reachability: Kafka is away after a failure or an overdue batch, until it answers a question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.reachability import Reachability


class Kafka:
    """Answers or not, and tells when it was asked."""

    def __init__(self) -> None:
        self.answers = True
        self.hangs = False
        self.overdue_s = 0.0
        self.lost = 0
        self.asked: asyncio.Queue[None] = asyncio.Queue()

    async def probe(self) -> bool:
        self.asked.put_nowait(None)
        if self.hangs:
            await asyncio.Event().wait()
        return self.answers

    def lose(self) -> None:
        self.lost += 1


@pytest.fixture
def kafka() -> Kafka:  # not the broker that the integration tests know by this name
    return Kafka()


@pytest_asyncio.fixture
async def reachability(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reachability]:
    for name in ("_LOOK_EVERY_S", "_PROBE_EVERY_S", "_PROBE_TIMEOUT_S"):
        monkeypatch.setattr(f"gateway.reachability.{name}", 0.005)
    reachability = Reachability(probe=kafka.probe, overdue_s=lambda now_s: kafka.overdue_s, on_away=kafka.lose)
    watching = asyncio.create_task(reachability.watch())
    yield reachability
    watching.cancel()


async def until(reachability: Reachability, *, away: bool) -> None:
    async with asyncio.timeout(5):
        while reachability.is_away is not away:  # noqa: ASYNC110  # it tells nobody when it changes: callers look
            await asyncio.sleep(0.002)


async def test_after_a_failure_it_is_away_until_it_answers(kafka: Kafka, reachability: Reachability) -> None:
    kafka.answers = False
    reachability.note_failure()
    assert reachability.is_away  # at once
    assert kafka.lost == 1
    async with asyncio.timeout(5):
        for _ in range(3):
            await kafka.asked.get()
    assert reachability.is_away
    reachability.note_failure()
    assert kafka.lost == 1
    kafka.answers = True
    await until(reachability, away=False)


async def test_an_overdue_batch_is_only_a_reason_to_ask(kafka: Kafka, reachability: Reachability) -> None:
    kafka.overdue_s = 3
    async with asyncio.timeout(5):
        await kafka.asked.get()
    assert not reachability.is_away
    kafka.hangs = True
    await until(reachability, away=True)
    assert kafka.lost == 1
    kafka.hangs, kafka.overdue_s = False, 0
    await until(reachability, away=False)


async def test_nothing_is_asked_while_all_is_well(kafka: Kafka, reachability: Reachability) -> None:
    await asyncio.sleep(0.05)  # ten looks: that nothing happens can only be waited for
    assert kafka.asked.empty()
