"""Outcomes: what waits for the store is bounded, and there is room again once half of it is stored."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.catalogue import Catalogue
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes
from schemas.control import ModelAnnouncement, announcement_key, encode_announcement
from schemas.model import ModelMetadata, TensorSpec
from schemas.outcome import JobState, Outcome, outcome_headers
from schemas.record import Origin
from store import open_store

TOPIC = "t.infer.m"


class Record(msgspec.Struct):
    """A reply."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Gate:
    """A store whose writes wait until it is opened."""

    def __init__(self, directory: Path) -> None:
        self._store = open_store(str(directory))
        self.is_open = threading.Event()
        self.written = 0

    def put(self, key: str, value: bytes, *, if_absent: bool = False) -> bool:
        self.is_open.wait(10)
        self.written += 1
        return self._store.put(key, value, if_absent=if_absent)


def record(offset: int, size: int = 10) -> Record:
    outcome = Outcome(f"id-{offset}", JobState.SUCCEEDED, Origin(TOPIC, 0, offset), b"x" * size, None, 1, 2, 3, "")
    return Record("t.replies", 0, offset, 0, None, b"x" * size, outcome_headers(outcome, b"/t"))


def outcomes_of(store: Any) -> Outcomes:
    catalogue = Catalogue()
    spec = TensorSpec("x", "FP32", (1,))
    model = ModelAnnouncement(ModelMetadata("m", ("1",), "p", 8, (spec,), (spec,)), "pool", TOPIC, 7, 1)
    catalogue.apply(announcement_key("m"), encode_announcement(model))
    return Outcomes(store=store, catalogue=catalogue, metrics=Metrics())


@pytest.mark.parametrize(("limits", "size"), [((4, 1 << 30), 10), ((1000, 400), 100)])
async def test_what_waits_is_bounded(
    tmp_path: Path, limits: tuple[int, int], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.outcomes._MAX_KEEPING", limits[0])
    monkeypatch.setattr("gateway.outcomes._MAX_KEEPING_BYTES", limits[1])
    gate = Gate(tmp_path)
    outcomes = outcomes_of(gate)
    kept: list[int] = []
    for offset in range(4):
        assert outcomes.has_room
        outcomes.keep_record(record(offset, size), on_kept=lambda offset=offset: kept.append(offset))  # type: ignore[misc]  # a default for each
    full = not outcomes.has_room
    assert full
    outcomes.keep(Outcome("left", JobState.SUCCEEDED, Origin(TOPIC, 0, 9), b"", None, 1, 2, 3, ""))  # dropped
    gate.is_open.set()
    await outcomes.room()
    await outcomes.settle()
    assert outcomes.has_room
    assert sorted(kept) == [0, 1, 2, 3]
    assert gate.written == 4
