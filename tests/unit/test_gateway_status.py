"""The status document: made of announcements, reports and the backlog, for those who may see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.backlog import PartitionBacklog
from gateway.caller import ANYONE, Caller
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.status import Status, StatusDocument, work_rate
from schemas.control import ModelAnnouncement, announcement_key, encode_announcement
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.progress import Progress
from schemas.worker_report import (
    LATENCY_BOUNDS_MS,
    BatchStatistics,
    Duration,
    ModelStatistics,
    WorkerReport,
    encode_report,
    report_key,
)

NOW_MS = 1_800_000_000_000


class FakeBacklog:
    """Backlogs by pool; a pool that is not there cannot be read."""

    def __init__(self, pools: Mapping[str, Mapping[str, int]]) -> None:
        self._pools = pools

    async def of_pool(self, pool: str) -> Any:
        if pool not in self._pools:
            raise InferenceError(ErrorCode.UNAVAILABLE, "Kafka does not tell")
        return {topic: (PartitionBacklog(Progress(10, 10), 10 + count),) for topic, count in self._pools[pool].items()}


def status_of(models: Mapping[str, str], backlogs: Mapping[str, Mapping[str, int]], **reports: WorkerReport) -> Status:
    catalogue, fleet = Catalogue(), Fleet()
    for name, pool in models.items():
        metadata = ModelMetadata(name, ("1", "2"), "onnx", 8, (), ())
        announcement = ModelAnnouncement(metadata, pool, f"t.infer.{name}", 1, 1)
        catalogue.apply(announcement_key(name), encode_announcement(announcement))
    for worker, report in reports.items():
        fleet.apply(report_key(worker), encode_report(report))
    backlog: Any = FakeBacklog(backlogs)
    return Status(catalogue=catalogue, fleet=fleet, backlog=backlog, state=lambda: "serving", in_flight=lambda: 3)


def report(pool: str = "p", *models: ModelStatistics, at_ms: int = NOW_MS - 1000) -> WorkerReport:
    return WorkerReport(pool, "serving", NOW_MS - 60_000, at_ms, "host", "0.1.0", ("cpu",), models)


def done(name: str, version: str = "1", **fields: Any) -> ModelStatistics:
    return ModelStatistics(name, version, "ready", **fields)


BUSY = done(
    "a",
    memory_bytes=500,
    success=Duration(100, 9_000_000),
    fail=Duration(2, 10),
    rows=100,
    batches=15,
    last_inference_ms=NOW_MS - 5000,
    batch_sizes=(BatchStatistics(4, 5, 1000, 98_000, 1000), BatchStatistics(8, 10, 0, 400_000, 0)),
    latency_counts=(0, 60, 40),
)


async def read(status: Status, caller: Caller = ANYONE) -> StatusDocument:
    return await status.read(caller, NOW_MS)


async def test_models_are_the_sums_of_their_pool_s_workers() -> None:
    other = report("other", done("a", success=Duration(999, 1)))
    status = status_of({"a": "p"}, {"p": {"t.infer.a": 40}}, w1=report("p", BUSY), w2=report("p", BUSY), w3=other)
    document = await read(status)
    assert (document.state, document.in_flight) == ("serving", 3)
    (model,) = document.models
    assert (model.succeeded, model.failed, model.rows, model.batches) == (200, 4, 200, 30)
    assert model.latency_counts == (0, 120, 80, *[0] * (len(LATENCY_BOUNDS_MS) - 2))
    assert [(size.rows, size.count, size.infer_ms) for size in model.batch_sizes] == [(4, 10, 19.6), (8, 20, 40.0)]
    assert [(each.version, each.states, each.memory_bytes) for each in model.versions] == [
        ("1", {"ready": 2}, 1000),
        ("2", {"unloaded": 2}, 0),
    ]
    # Each worker answered 100 requests in half a second of work, so both do 400 in a second.
    assert (model.backlog, model.backlog_s) == (40, 0.1)
    assert [(pool.name, pool.workers, pool.backlog, pool.backlog_s) for pool in document.pools] == [("p", 2, 40, 0.1)]
    assert [worker.id for worker in document.workers] == ["w1", "w2"]
    assert (document.workers[0].in_memory, document.workers[0].memory_bytes) == (1, 500)


async def test_what_is_not_known_is_not_zero() -> None:
    status = status_of(
        {"a": "p", "b": "q", "c": "q"}, {"q": {"t.infer.b": 5, "t.infer.c": 0}}, w=report("q", done("c"))
    )
    document = await read(status)
    backlogs = {model.name: (model.backlog, model.backlog_s) for model in document.models}
    assert backlogs == {"a": (None, None), "b": (5, None), "c": (0, 0.0)}
    pools = {pool.name: (pool.backlog, pool.backlog_s, pool.reason, pool.workers) for pool in document.pools}
    assert pools == {"p": (None, None, "Kafka does not tell", 0), "q": (5, None, "", 1)}


async def test_a_caller_sees_what_he_may_read_about_and_nothing_of_the_rest() -> None:
    workers = {"w1": report("p", BUSY, done("secret", memory_bytes=9)), "w2": report("q", done("hidden"))}
    models = {"a": "p", "secret": "p", "hidden": "q"}
    status = status_of(models, {"p": {"t.infer.a": 1, "t.infer.secret": 7}, "q": {"t.infer.hidden": 3}}, **workers)
    document = await read(status, Caller(scopes=("read:a",)))
    assert [model.name for model in document.models] == ["a"]
    assert [(pool.name, pool.models, pool.backlog) for pool in document.pools] == [("p", 1, 1)]
    assert [(worker.id, worker.in_memory, worker.memory_bytes) for worker in document.workers] == [("w1", 1, 500)]
    nothing = await read(status, Caller(scopes=("infer:*",)))
    assert (nothing.models, nothing.pools, nothing.workers) == ((), (), ())


async def test_a_worker_that_has_fallen_silent_is_not_shown() -> None:
    status = status_of({"a": "p"}, {"p": {}}, w=report("p", BUSY, at_ms=NOW_MS - 60_000))
    document = await read(status)
    assert document.workers == ()
    assert document.models[0].succeeded == 0


async def test_a_version_that_does_not_load_says_why() -> None:
    failed = ModelStatistics("a", "2", "failed", "out of memory")
    document = await read(status_of({"a": "p"}, {"p": {}}, w=report("p", failed)))
    assert [(each.states, each.reason) for each in document.models[0].versions] == [
        ({"unloaded": 1}, ""),
        ({"failed": 1}, "out of memory"),
    ]


async def test_the_rate_can_be_a_measured_one() -> None:
    status = status_of({"a": "p"}, {"p": {"t.infer.a": 40}}, w=report("p", BUSY))
    status._rate = lambda model, now_ms: 20.0 if (model, now_ms) == ("a", NOW_MS) else None
    assert (await read(status)).models[0].backlog_s == 2.0


def test_the_work_of_a_worker_s_versions_is_its_own_and_that_of_workers_adds_up() -> None:
    assert work_rate([]) is None
    assert work_rate([[done("a")]]) is None
    assert work_rate([[BUSY]]) == pytest.approx(200)
    assert work_rate([[BUSY, BUSY]]) == pytest.approx(200)
    assert work_rate([[BUSY], [BUSY]]) == pytest.approx(400)
