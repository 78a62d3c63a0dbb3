"""Fleet and Statistics: what workers report adds up, whoever comes and goes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.statistics import Statistics, statistics_document
from schemas.control import ModelAnnouncement, announcement_key, encode_announcement
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.worker_report import (
    BatchStatistics,
    Duration,
    ModelStatistics,
    WorkerReport,
    encode_report,
    report_key,
)

NOW_MS = 1_000_000_000
DONE = ModelStatistics(
    "m",
    "2",
    "ready",
    success=Duration(10, 500),
    fail=Duration(1, 7),
    queue=Duration(10, 100),
    rows=20,
    batches=5,
    last_inference_ms=77,
    batch_sizes=(BatchStatistics(4, 5, 10, 20, 30),),
    latency_counts=(3, 7),
)


def tell(fleet: Fleet, worker: str, *models: ModelStatistics, started_ms: int = 5, at_ms: int = NOW_MS) -> None:
    fleet.apply(report_key(worker), encode_report(WorkerReport("p", "serving", started_ms, at_ms, models=models)))


def total(fleet: Fleet) -> int:
    return sum(done.success.count for done in fleet.statistics())


def catalogue() -> Catalogue:
    known = Catalogue()
    metadata = ModelMetadata("m", ("1", "2"), "x", 0, (), ())
    known.apply(announcement_key("m"), encode_announcement(ModelAnnouncement(metadata, "p", "t.infer.m", 1, 1)))
    known.complete = True
    return known


def test_counts_do_not_fall_when_workers_go_start_again_or_fall_silent() -> None:
    fleet = Fleet()
    tell(fleet, "a", DONE)
    tell(fleet, "b", DONE)
    assert total(fleet) == 20
    tell(fleet, "a", replace(DONE, success=Duration(15, 600)))
    assert total(fleet) == 25
    fleet.apply(report_key("a"), None)
    assert total(fleet) == 25
    tell(fleet, "b", replace(DONE, success=Duration(2, 2)), started_ms=6)
    assert total(fleet) == 27
    tell(fleet, "c", at_ms=NOW_MS + 10 * 3600_000)  # b has told nothing for hours
    assert total(fleet) == 27
    assert set(fleet.living(NOW_MS + 10 * 3600_000)) == {"c"}


def test_the_silent_are_not_living() -> None:
    fleet = Fleet()
    tell(fleet, "a", at_ms=NOW_MS - 31_000)
    tell(fleet, "b", at_ms=NOW_MS - 29_000)
    assert set(fleet.of_pool("p", NOW_MS)) == {"b"}
    assert fleet.of_pool("other", NOW_MS) == {}


def test_other_and_broken_records_change_nothing() -> None:
    fleet = Fleet()
    fleet.apply(b"model/m", b"{}")
    fleet.apply(report_key("a"), b"\xff")
    fleet.apply(None, None)
    assert not list(fleet.statistics())


async def test_waiting_ends_with_the_report_that_was_waited_for() -> None:
    fleet = Fleet()
    waiting = asyncio.ensure_future(fleet.wait_until(lambda: total(fleet) >= 20, timeout_s=60))
    for worker in ("a", "b"):
        await asyncio.sleep(0)
        tell(fleet, worker, DONE)
    assert await waiting
    assert not await fleet.wait_until(lambda: False, timeout_s=0)


def test_statistics_are_the_sum_of_all_workers_in_the_protocols_form() -> None:
    fleet = Fleet()
    tell(fleet, "a", DONE, replace(DONE, name="gone"))
    tell(fleet, "b", replace(DONE, batch_sizes=(BatchStatistics(2, 1, 1, 1, 1), BatchStatistics(4, 1, 1, 1, 1))))
    statistics = Statistics(catalogue=catalogue(), fleet=fleet)
    unused, used = map(statistics_document, statistics.models())
    assert (unused["version"], unused["inference_count"]) == ("1", 0)
    assert (used["version"], used["inference_count"], used["execution_count"]) == ("2", 40, 10)
    assert used["last_inference"] == 77
    assert used["inference_stats"]["success"] == {"count": 20, "ns": 1_000_000}
    assert used["inference_stats"]["fail"] == {"count": 2, "ns": 14_000}
    assert [(each["batch_size"], each["compute_infer"]) for each in used["batch_stats"]] == [
        (2, {"count": 1, "ns": 1000}),
        (4, {"count": 6, "ns": 21_000}),
    ]
    assert [each.version for each in statistics.models("m", "2")] == ["2"]


@pytest.mark.parametrize(("name", "version"), [("unknown", ""), ("m", "3")])
def test_statistics_of_what_is_not_served_are_refused(name: str, version: str) -> None:
    with pytest.raises(InferenceError) as caught:
        Statistics(catalogue=catalogue(), fleet=Fleet()).models(name, version)
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND


def test_latencies_of_unequal_length_add_up() -> None:
    assert (DONE + replace(DONE, latency_counts=(1, 1, 1))).latency_counts == (4, 8, 1)
    assert msgspec.json.decode(msgspec.json.encode(DONE), type=ModelStatistics) == DONE
