"""What a queued job waits for and how long: rates, restarts and load times, measured and never made up."""

from __future__ import annotations

import pytest

from gateway.backlog import PartitionBacklog
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.load_times import LoadTimes
from gateway.outlook import CRASH_LOOPING, Outlook
from gateway.restarts import Restarts
from gateway.service_rate import ServiceRates
from schemas.control import (
    LoadProgress,
    ModelAnnouncement,
    encode_load_progress,
    loading_key,
)
from schemas.model import ModelMetadata
from schemas.progress import Progress
from schemas.worker_report import Duration, ModelStatistics, WorkerReport, encode_report, report_key

NOW_MS = 1_700_000_000_000
MODEL = ModelAnnouncement(ModelMetadata("m", ("1",), "echo", 0, (), ()), "pool", "t.infer.m", 1, 2)
BUSY = PartitionBacklog(Progress(0, 0), 100)
IDLE = PartitionBacklog(Progress(0, 0), 0)


def report(
    at_ms: int, answered: int = 0, *, started_ms: int = NOW_MS, state: str = "ready", reason: str = ""
) -> WorkerReport:
    model = ModelStatistics("m", "1", state, reason, success=Duration(answered))
    return WorkerReport("pool", "serving", started_ms, at_ms, models=(model,))


# --- rates


def test_a_rate_is_what_came_between_two_reports() -> None:
    rates = ServiceRates()
    rates.note("w", report(NOW_MS, 100))
    assert rates.per_s("m", NOW_MS) is None  # one report says nothing about speed
    rates.note("w", report(NOW_MS + 2000, 300))
    assert rates.per_s("m", NOW_MS + 2000) == 100
    assert rates.per_s("other", NOW_MS) is None


def test_workers_add_up_and_one_that_stopped_does_not_count() -> None:
    rates = ServiceRates()
    for worker in ("a", "b"):
        rates.note(worker, report(NOW_MS))
        rates.note(worker, report(NOW_MS + 1000, 50))
    assert rates.per_s("m", NOW_MS + 1000) == 100
    rates.note("a", None)
    assert rates.per_s("m", NOW_MS + 1000) == 50


def test_an_idle_worker_has_not_become_slower_but_an_old_rate_is_none() -> None:
    rates = ServiceRates()
    for second, answered in enumerate([0, 80, 80, 81]):
        rates.note("w", report(NOW_MS + 1000 * second, answered))
    assert rates.per_s("m", NOW_MS + 3000) == 80
    assert rates.per_s("m", NOW_MS + 300_000) is None


def test_a_slower_rate_replaces_one_that_is_old() -> None:
    rates = ServiceRates()
    rates.note("w", report(NOW_MS))
    rates.note("w", report(NOW_MS + 1000, 100))
    rates.note("w", report(NOW_MS + 200_000, 100))
    rates.note("w", report(NOW_MS + 201_000, 110))
    assert rates.per_s("m", NOW_MS + 201_000) == 10


def test_a_worker_that_starts_anew_counts_from_nothing() -> None:
    rates = ServiceRates()
    rates.note("w", report(NOW_MS, 1000))
    rates.note("w", report(NOW_MS + 1000, 5))
    assert rates.per_s("m", NOW_MS + 1000) is None
    rates.note("w", report(NOW_MS + 2000, 25))
    assert rates.per_s("m", NOW_MS + 2000) == 20


def test_reports_that_come_together_make_no_rate() -> None:
    rates = ServiceRates()
    rates.note("w", report(NOW_MS))
    rates.note("w", report(NOW_MS + 1, 50))
    assert rates.per_s("m", NOW_MS) is None


# --- restarts


def test_short_lives_one_after_the_other_are_a_crash_loop() -> None:
    restarts = Restarts()
    for life in range(3):
        started_ms = NOW_MS + 20_000 * life
        for at_ms in (started_ms + 2000, started_ms + 8000):
            restarts.note(f"w{life}", report(at_ms, started_ms=started_ms))
        assert restarts.is_crash_looping("pool", started_ms + 9000) is (life == 2)
    assert not restarts.is_crash_looping("other", NOW_MS)
    assert not restarts.is_crash_looping("pool", NOW_MS + 3_600_000)  # long ago


def test_a_crash_loop_under_one_name_is_one_too() -> None:
    restarts = Restarts()
    for life in range(3):
        restarts.note("w", report(NOW_MS + 20_000 * life + 3000, started_ms=NOW_MS + 20_000 * life))
    assert restarts.is_crash_looping("pool", NOW_MS + 45_000)


def test_two_lives_that_told_of_themselves_once_are_no_crash_loop() -> None:
    restarts = Restarts()
    for life in range(2):
        restarts.note("w", report(NOW_MS + 20_000 * life, started_ms=NOW_MS + 20_000 * life))
    assert not restarts.is_crash_looping("pool", NOW_MS + 30_000)


@pytest.mark.parametrize("kind", ["answered", "left", "lived long", "side by side"])
def test_what_is_no_crash_loop(kind: str) -> None:
    restarts = Restarts()
    for life in range(4):
        started_ms = NOW_MS + (1 if kind == "side by side" else 20_000) * life
        last_ms = started_ms + (100_000 if kind == "lived long" else 5000)
        restarts.note(f"w{life}", report(last_ms, int(kind == "answered"), started_ms=started_ms))
        if kind == "left":
            restarts.note(f"w{life}", None)
    assert not restarts.is_crash_looping("pool", NOW_MS + 90_000)


# --- load times


def test_a_load_is_as_long_as_the_last_one() -> None:
    loads = LoadTimes()
    loads.note("m", LoadProgress("1", 0.0, NOW_MS), NOW_MS)
    assert loads.left_s("m", NOW_MS) is None  # nobody knows
    loads.note("m", LoadProgress("1", 0.5, NOW_MS + 4000), NOW_MS + 4000)
    loads.note("m", None, NOW_MS + 8000)
    assert loads.left_s("m", NOW_MS + 8000) is None  # nothing is loading
    loads.note("m", LoadProgress("1", 0.0, NOW_MS + 20_000), NOW_MS + 20_000)
    assert loads.left_s("m", NOW_MS + 23_000) == 5
    assert loads.left_s("m", NOW_MS + 60_000) == 0


def test_what_is_read_back_at_a_start_is_no_load() -> None:
    loads = LoadTimes()
    loads.note("m", LoadProgress("1", 0.0, NOW_MS - 3_600_000), NOW_MS)
    loads.note("m", None, NOW_MS)
    loads.note("m", LoadProgress("1", 0.0, NOW_MS), NOW_MS)
    assert loads.left_s("m", NOW_MS) is None


# --- together


class Site:
    """An outlook and what it is told."""

    def __init__(self) -> None:
        self.catalogue, self.fleet = Catalogue(), Fleet()
        rates, restarts, loads = ServiceRates(), Restarts(), LoadTimes()
        self.loads = loads
        self.fleet.observe(rates.note)
        self.fleet.observe(restarts.note)
        self.catalogue.observe_loading(loads.note)
        self.outlook = Outlook(catalogue=self.catalogue, fleet=self.fleet, rates=rates, restarts=restarts, loads=loads)

    def report(self, worker: str, told: WorkerReport) -> None:
        self.fleet.apply(report_key(worker), encode_report(told))

    def loading(self, ratio: float, at_ms: int) -> None:
        self.catalogue.apply(loading_key("m"), encode_load_progress(LoadProgress("1", ratio, at_ms)))

    def reason(self, position: int, now_ms: int = NOW_MS) -> str | None:
        return self.outlook.reason(MODEL, position, now_ms)

    def eta_s(self, position: int, *partitions: PartitionBacklog) -> float | None:
        return self.outlook.eta_s(MODEL, position, partitions, NOW_MS + 2000)


async def test_reasons_from_the_worst_to_the_best() -> None:
    site = Site()
    assert site.reason(3) == "no worker"
    site.report("w", report(NOW_MS, state="unloaded"))
    assert site.reason(3) == "behind 3 requests"
    site.report("w", report(NOW_MS, state="failed", reason="no such file"))
    assert site.reason(3) == "model does not load: no such file"
    site.report("w", report(NOW_MS, state="fetching"))
    assert site.reason(3) == "model loading"
    site.loading(0.4, NOW_MS)
    assert site.reason(3) == "model loading, 40% fetched"
    for life in range(3):
        site.report(f"c{life}", report(NOW_MS + 100 * life + 50, started_ms=NOW_MS + 100 * life))
    assert site.reason(3) == CRASH_LOOPING


async def test_who_is_next_with_a_model_that_is_there_waits_for_nothing() -> None:
    site = Site()
    site.report("w", report(NOW_MS))
    assert site.reason(0) is None
    assert site.reason(1) == "behind 1 request"
    assert site.reason(1, NOW_MS + 60_000) == "no worker"  # it has fallen silent


async def test_an_eta_is_position_by_rate_where_both_are_known() -> None:
    site = Site()
    assert site.eta_s(10, BUSY, BUSY) is None
    site.report("w", report(NOW_MS))
    assert site.eta_s(10, BUSY, BUSY) is None
    site.report("w", report(NOW_MS + 2000, 100))  # 50 per second
    assert site.eta_s(10, BUSY, IDLE) == 0.2
    assert site.eta_s(10, BUSY, BUSY) == 0.4  # the other partition has work, too
    assert site.eta_s(0, BUSY, BUSY) == 0
    site.loading(0.1, NOW_MS + 2000)
    assert site.eta_s(10, BUSY, IDLE) is None  # no load of it was ever measured


async def test_a_model_that_is_not_there_takes_as_long_as_its_last_load() -> None:
    site = Site()
    site.report("w", report(NOW_MS))
    site.report("w", report(NOW_MS + 2000, 100, state="unloaded"))
    assert site.eta_s(10, BUSY) is None
    site.loads.note("m", LoadProgress("1", 0.0, NOW_MS), NOW_MS)
    site.loads.note("m", None, NOW_MS + 3000)
    assert site.eta_s(10, BUSY) == 3.2
