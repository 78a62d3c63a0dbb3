"""The sweeper: what is too old goes, nothing else does, one gateway of all sweeps, and no pass is endless."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from gateway.outcomes import request_key
from gateway.sweeper import Sweep, Sweeper
from gateway.webhook_states import webhook_key
from schemas.outcome import answer_key, outcome_key
from schemas.record import Origin
from store import ObjectStore, open_store

HOUR_MS = 3_600_000
DAY_S = 86_400
NOW_MS = 1_700_000_000_000


class Site:
    """A store whose objects' ages are set by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store: ObjectStore = open_store(str(root))

    def put(self, key: str, age_ms: int) -> str:
        self.store.put(key, b"x")
        seconds = (NOW_MS - age_ms) / 1000
        os.utime(self.root / key, (seconds, seconds))
        return key

    def sweep(self, *, until_s: float | None = None, seed: int = 1) -> set[str]:
        """What is left."""
        ends_s = time.monotonic() + 60 if until_s is None else until_s
        sweep = Sweep(self.store, now_ms=NOW_MS, until_s=ends_s, rng=random.Random(seed))
        sweep.run(
            results_ms=DAY_S * 1000, payloads_ms=30 * DAY_S * 1000, keys_ms=DAY_S * 1000, webhooks_ms=2 * DAY_S * 1000
        )
        return {info.key for info in self.store.list("")}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def outcome(offset: int, *, partition: int = 0, topic: str = "t.infer.m") -> str:
    return outcome_key(Origin(topic, partition, offset), 7)


def test_each_kind_goes_at_its_age_and_not_before(site: Site) -> None:
    day_ms = 24 * HOUR_MS
    old = 26 * HOUR_MS
    kept = {
        site.put(outcome(1), day_ms + HOUR_MS // 2),  # there is slack for who reads just now
        site.put(outcome(2), 0),
        site.put(answer_key(Origin("t.infer.m", 0, 2), 7, "a"), day_ms),
        site.put(request_key("g-1", NOW_MS - 29 * day_ms), 29 * day_ms),
        site.put("claims/dead/t/0/1", 29 * day_ms),
        site.put(answer_key(Origin("t.infer.m", 0, 1), 7, "a", lasting=True), 29 * day_ms),
        site.put("idempotency/aa/aabb/0000/claim", day_ms),
        site.put(webhook_key(Origin("t.infer.m", 0, 1), 7), 2 * day_ms),
        site.put("models/m/config.pbtxt", 400 * day_ms),  # whatever else lives in the store
        site.put("claims/t.results.m/t/0/1", 400 * day_ms),
    }
    site.put(outcome(0), old)
    site.put(outcome(3, partition=1, topic="t.infer.n"), old)
    site.put(answer_key(Origin("t.infer.m", 0, 0), 7, "a"), old)
    site.put(request_key("g-0", NOW_MS - 31 * day_ms), 31 * day_ms)
    site.put("claims/dead/t/0/0", 31 * day_ms)
    site.put(webhook_key(Origin("t.infer.m", 0, 0), 7), 2 * day_ms + old - day_ms)
    site.put(answer_key(Origin("t.infer.m", 0, 0), 7, "a", lasting=True), 31 * day_ms)
    site.put("idempotency/aa/aacc/0000/claim", old)
    site.put("idempotency/aa/aacc/0000/answers", old)
    assert site.sweep() == kept


def test_a_key_goes_as_a_whole_or_not_at_all(site: Site) -> None:
    kept = {
        site.put("idempotency/aa/aabb/0000/claim", 50 * HOUR_MS),  # its number must not be free below the next one
        site.put("idempotency/aa/aabb/0000/answers", 50 * HOUR_MS),
        site.put("idempotency/aa/aabb/0001/claim", HOUR_MS),
    }
    site.put("idempotency/aa/aa00/0000/claim", 50 * HOUR_MS)
    site.put("idempotency/aa/aaff/0000/claim", 50 * HOUR_MS)
    assert site.sweep() == kept


def test_young_objects_of_an_old_hour_stay(site: Site) -> None:
    kept = {site.put(request_key("g-1", NOW_MS - 40 * 24 * HOUR_MS), HOUR_MS)}  # written by a clock that was wrong
    assert site.sweep() == kept


def test_behind_many_young_ones_nothing_is_looked_for(site: Site) -> None:
    for offset in range(201):
        site.put(outcome(offset), 0)
    behind = site.put(outcome(500), 30 * HOUR_MS)
    assert behind in site.sweep()


def test_a_pass_whose_time_is_over_removes_nothing_and_says_so(site: Site) -> None:
    key = site.put("idempotency/aa/aabb/0000/claim", 50 * HOUR_MS)
    assert site.sweep(until_s=time.monotonic() - 1) == {key}


def test_an_empty_store_is_swept(site: Site, tmp_path: Path) -> None:
    site.store.put("x", b"")
    assert site.sweep() == {"x"}


def test_one_of_all_gateways_sweeps_in_a_period(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.put(outcome(0), 50 * HOUR_MS)
    first, second = (
        Sweeper(store=site.store, every_s=600, results_s=DAY_S, payloads_s=DAY_S, keys_s=DAY_S, webhooks_s=DAY_S)
        for _ in range(2)
    )
    assert first.sweep_once(now_ms=NOW_MS) == 1
    assert second.sweep_once(now_ms=NOW_MS + 1000) is None
    site.put(outcome(1), 50 * HOUR_MS)
    assert second.sweep_once(now_ms=NOW_MS + 600_000) == 1
