"""Dispatcher: what is refused before it reaches Kafka, what is taken back, and that nothing stays counted."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.admission import Admission, AdmissionLimits, Queue
from gateway.call import Call
from gateway.caller import Caller
from gateway.dispatcher import Dispatcher
from gateway.outbox import Handed
from schemas.control import ModelAnnouncement
from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, TensorSpec
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from schemas.topics import Topics

SPEC = TensorSpec("x", "FP32", (1,))
MODEL = ModelAnnouncement(ModelMetadata("m", ("1",), "p", 8, (SPEC,), (SPEC,)), "pool", "t.infer.m", 7, 1)
REQUEST = InferenceRequest((tensor_from_list("x", "FP32", (1, 1), [1.0]),), (), "", {})


class Broker:
    """Takes records and never acknowledges them."""

    def __init__(self) -> None:
        self.reachability = type("Reachability", (), {"is_away": False})
        self.taken: list[Handed] = []
        self.leaves = False

    def outbox(self, topic: str) -> Any:
        return self

    def put(self, handed: Handed) -> None:
        handed.has_left = self.leaves
        self.taken.append(handed)


class Site:
    """A dispatcher that is open."""

    def __init__(self, queue: Queue | None = None) -> None:
        self.broker = Broker()
        parts: Any = {"broker": self.broker, "outcomes": None}
        self.dispatcher = Dispatcher(
            **parts,
            topics=Topics("t"),
            gateway_id="g",
            job_key=b"k" * 32,
            admission=Admission(AdmissionLimits(10), queue_of=lambda model: queue),
            claim_above_bytes=1 << 20,
        )
        self.dispatcher.open(reply_partition=0)

    async def refused(self, call: Call) -> InferenceError:
        with pytest.raises(InferenceError) as caught:
            await self.dispatcher.infer(MODEL, REQUEST, call)
        assert self.dispatcher.in_flight == 0
        return caught.value


def call(**more: Any) -> Call:
    return Call("g-1", 10_000, **more)


def within_ms(budget_ms: int) -> Deadline:
    return Deadline.after(budget_ms, now_ms=time.time_ns() // 1_000_000)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.dispatcher.REQUEST_TIMEOUT_S", 0.02)


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("clock", ["deadline", "start_by"])
async def test_what_cannot_be_in_time_never_reaches_kafka(clock: str, detached: bool) -> None:
    site = Site(Queue(1000, 10.0))
    error = await site.refused(call(detached=detached, **{clock: within_ms(5000)}))
    assert error.code is ErrorCode.OVERLOADED
    assert error.retry_after_s == pytest.approx(95, abs=1)
    assert site.broker.taken == []


@pytest.mark.parametrize(
    ("more", "queue"),
    [
        ({"deadline": within_ms(5000), "priority": 1}, Queue(1000, 10.0)),  # it may overtake
        ({"deadline": within_ms(10_000_000)}, Queue(1000, 10.0)),
        ({"deadline": within_ms(5000)}, Queue(1000)),
        ({"deadline": within_ms(5000)}, None),
        ({}, Queue(10**9, 0.1)),  # nobody hurries
    ],
)
async def test_what_may_be_in_time_is_sent(more: dict[str, Any], queue: Queue | None) -> None:
    site = Site(queue)
    assert (await site.refused(call(**more))).code is ErrorCode.UNAVAILABLE  # this broker takes nothing
    assert len(site.broker.taken) == 1


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(("leaves", "fate"), [(False, "will not run"), (True, "may run nevertheless")])
async def test_what_has_not_left_when_its_caller_is_refused_is_taken_back(
    detached: bool, leaves: bool, fate: str
) -> None:
    site = Site()
    site.broker.leaves = leaves
    error = await site.refused(call(detached=detached))
    assert error.code is ErrorCode.UNAVAILABLE
    assert fate in error.message
    assert site.broker.taken[0].is_withdrawn is not leaves


async def test_while_kafka_is_away_nobody_waits() -> None:
    site = Site()
    site.broker.reachability.is_away = True  # type: ignore[attr-defined]  # of a class of this test
    error = await site.refused(call(caller=Caller("acme")))
    assert error.code is ErrorCode.UNAVAILABLE
    assert "was not accepted" in error.message
    assert site.broker.taken == []
