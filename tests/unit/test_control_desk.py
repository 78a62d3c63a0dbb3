"""What is done about the control topic: who is told, and whose records are removed, and when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import pytest

from schemas.cancellation import Cancellation, cancellation_key, encode_cancellation
from schemas.kafka_connection import KafkaConnection
from schemas.record import Origin
from schemas.wish import ModelWish, encode_wish, wish_key
from schemas.worker_report import WorkerReport, encode_report, report_key
from workers.cancellations import Cancellations, Place
from workers.control import ControlRecord
from workers.control_desk import ControlDesk
from workers.publisher import Publication, Publisher
from workers.wishes import Wishes

_TOPIC = "t.infer.m"
_HOUR_MS = 3_600_000


class Removals(Publisher):
    """Notes the keys that are removed."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def publish(self, publication: Publication) -> None:
        assert (publication.topic, publication.partition, publication.value) == ("t.control", 0, None)
        assert publication.key is not None
        self.keys.append(publication.key)


class NoWishes(Wishes):
    """Notes what is asked."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def apply(self, key: object, value: object) -> bool:
        return False

    def begin(self) -> None:
        self.told.append("begin")


class Desk:
    """A desk whose topic begins with these records."""

    def __init__(self, *records: ControlRecord) -> None:
        self.removals = Removals()
        self.cancelled = Cancellations()
        self.cancelled.know(_TOPIC, 1)
        self.wishes = NoWishes()
        self.desk = ControlDesk(
            self.removals,
            kafka=KafkaConnection(bootstrap="127.0.0.1:1"),
            control_topic="t.control",
            cancelled=self.cancelled,
            wishes=self.wishes,
        )
        self.told: list[frozenset[str]] = []
        self.committed: dict[Place, int] = {}
        self.desk.on_cancelled = self._note
        self.desk.committed = self.committed.get
        self._records = list(records)

    def _note(self, topics: Iterable[str]) -> None:
        self.told.append(frozenset(topics))

    def take(self, *records: ControlRecord) -> None:
        self.desk._follower._on_records(list(records))

    async def catch_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def read() -> None:
            self.take(*self._records)

        monkeypatch.setattr(self.desk._follower, "catch_up", read)
        await self.desk.catch_up()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def cancelling(offset: int, *, epoch: int = 1, topic: str = _TOPIC, at_ms: int | None = None) -> ControlRecord:
    key = cancellation_key(Origin(topic, 0, offset), epoch)
    return ControlRecord(key, encode_cancellation(Cancellation(at_ms or now_ms())), now_ms())


def report(worker: str, *, age_ms: int) -> ControlRecord:
    told = WorkerReport("p", "serving", 1, now_ms() - age_ms)
    return ControlRecord(report_key(worker), encode_report(told), now_ms() - age_ms)


async def test_the_start_removes_what_the_dead_and_other_lives_of_a_topic_left(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ControlRecord(b"model/m", b"{}", now_ms() - 9 * _HOUR_MS)
    desk = Desk(
        report("dead", age_ms=_HOUR_MS),
        report("alive", age_ms=_HOUR_MS),
        report("alive", age_ms=2000),
        report("stopped", age_ms=_HOUR_MS),
        ControlRecord(report_key("stopped"), None, now_ms() - _HOUR_MS),
        cancelling(1),
        cancelling(2, epoch=9),
        cancelling(3, topic="t.infer.unknown"),
        cancelling(4, at_ms=1),
        old,
    )
    await desk.catch_up(monkeypatch)
    assert sorted(desk.removals.keys) == sorted(
        [report_key("dead"), cancelling(2, epoch=9).key or b"", cancelling(4).key or b""]
    )
    desk.take(old)
    assert desk.told == []  # nothing was here that could have been told
    assert desk.wishes.told == ["begin"]
    assert desk.cancelled.has(Origin(_TOPIC, 0, 1))


async def test_who_is_cancelled_later_is_told_of_by_topic_once_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    await desk.catch_up(monkeypatch)
    desk.take(cancelling(1), cancelling(2), cancelling(3, epoch=9), cancelling(4, topic="t.infer.unknown"))
    desk.take(ControlRecord(cancelling(1).key, None, 1), report("dead", age_ms=_HOUR_MS))
    assert desk.told == [frozenset({_TOPIC})]
    assert desk.removals.keys == []


async def test_a_cancellation_is_removed_once_everything_up_to_it_is_committed_by_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(cancelling(1), cancelling(5))
    await desk.catch_up(monkeypatch)
    desk.desk.sweep()
    assert desk.removals.keys == []  # not ours
    desk.committed[_TOPIC, 0] = 5
    desk.desk.sweep()
    assert desk.removals.keys == [cancelling(1).key]
    desk.committed[_TOPIC, 0] = 6
    desk.desk.sweep()
    desk.desk.sweep()
    assert desk.removals.keys == [cancelling(1).key, cancelling(5).key]
    assert desk.cancelled.count == 0


async def test_a_wish_is_no_cancellation_and_other_records_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    await desk.catch_up(monkeypatch)
    desk.take(ControlRecord(wish_key("m"), encode_wish(ModelWish("load", 1)), 1), ControlRecord(None, b"", 1))
    assert desk.cancelled.count == 0
    await asyncio.sleep(0)
