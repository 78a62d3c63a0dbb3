"""Status: the whole installation at a glance, as its backlog and its workers' reports tell: pools, models, workers.

The document behind the status page. Knows no page and no Kafka client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gateway.backlog import Backlog, PoolBacklog
from gateway.caller import Caller
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.models import server_version
from schemas.control import ModelAnnouncement
from schemas.errors import InferenceError
from schemas.record import rfc3339
from schemas.worker_report import LATENCY_BOUNDS_MS, ModelStatistics, WorkerReport

_STATES_IN_MEMORY = ("ready",)
_AT_A_TIME = 32


class BatchSize(msgspec.Struct, frozen=True):
    """How many batches of `rows` rows were run, and how long one takes in the model, on the mean."""

    rows: int
    count: int
    infer_ms: float


class ServedVersion(msgspec.Struct, frozen=True):
    """A model's version. `states`: how many workers have it in each state. `reason`: why it does not load."""

    version: str
    states: dict[str, int]
    memory_bytes: int
    reason: str = ""


class ServedModel(msgspec.Struct, frozen=True):
    """A model: what waits, what was done, since each worker's start.

    `backlog` counts requests; `backlog_s` is how long they take at the workers' pace; null is not known, never zero.
    `latency_counts` are the answered requests by `latency_bounds_ms` of the document, the last of those above all.
    """

    name: str
    pool: str
    versions: tuple[ServedVersion, ...]
    backlog: int | None
    backlog_s: float | None
    succeeded: int
    failed: int
    rows: int
    batches: int
    last_inference_at: str | None
    batch_sizes: tuple[BatchSize, ...]
    latency_counts: tuple[int, ...]


class ServedPool(msgspec.Struct, frozen=True):
    """A pool: what waits for it and who works. `reason`: why its backlog cannot be read."""

    name: str
    models: int
    workers: int
    backlog: int | None
    backlog_s: float | None
    reason: str = ""


class RunningWorker(msgspec.Struct, frozen=True):
    """A worker that has told of itself within the last half minute. `in_memory`: models that are loaded."""

    id: str
    pool: str
    host: str
    state: str
    started_at: str
    told_at: str
    version: str
    devices: tuple[str, ...]
    in_memory: int
    memory_bytes: int


class StatusDocument(msgspec.Struct, frozen=True):
    """The installation, as far as the caller may read about it."""

    at: str
    version: str
    state: str
    in_flight: int
    latency_bounds_ms: tuple[float, ...]
    pools: tuple[ServedPool, ...]
    models: tuple[ServedModel, ...]
    workers: tuple[RunningWorker, ...]


_Done = Sequence[Sequence[ModelStatistics]]  # of one model: for each worker that tells of it, its versions


def work_rate(done: _Done) -> float | None:
    """Requests per second of these workers together, as if they did nothing else, by the time that batches took them.

    None where nothing has been run.
    """
    total = 0.0
    for versions in done:
        busy_us = sum(
            batch.assemble_us + batch.infer_us + batch.answer_us for each in versions for batch in each.batch_sizes
        )
        answered = sum(each.success.count for each in versions)
        if busy_us and answered:
            total += answered / (busy_us / 1e6)
    return total or None


class Status:
    """Makes the document."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        fleet: Fleet,
        backlog: Backlog,
        state: Callable[[], str],
        in_flight: Callable[[], int],
        rate: Callable[[str, int], float | None] | None = None,
    ) -> None:
        """`rate(model, now in Unix milliseconds)`: requests per second of all workers together, None where that is not
        known; without it, it is estimated by `work_rate`.
        """
        self._catalogue = catalogue
        self._fleet = fleet
        self._backlog = backlog
        self._state = state
        self._in_flight = in_flight
        self._rate = rate

    async def read(self, caller: Caller, now_ms: int) -> StatusDocument:
        """What the caller may see now. Within the 2 s that reading the backlog may take; raises nothing."""
        seen = [model for model in self._catalogue.models() if caller.may("read", model.metadata.name)]
        pools = sorted({model.pool for model in seen})
        living = {
            worker: report for worker, report in self._fleet.living(now_ms).items() if report.pool in frozenset(pools)
        }
        backlogs = dict(zip(pools, await asyncio.gather(*map(self._backlog_of, pools)), strict=True))
        done, workers = _by_model(living.values()), Counter(report.pool for report in living.values())
        models: list[ServedModel] = []
        for number, model in enumerate(sorted(seen, key=lambda model: model.metadata.name)):
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)  # requests go first: a thousand models take a tenth of a second
            told = done.get((model.pool, model.metadata.name), ())
            models.append(self._model(model, backlogs[model.pool], told, workers[model.pool], now_ms))
        names = {model.name for model in models}
        return StatusDocument(
            rfc3339(now_ms),
            server_version(),
            self._state(),
            self._in_flight(),
            LATENCY_BOUNDS_MS,
            tuple(_pool(pool, backlogs[pool], models, workers[pool]) for pool in pools),
            tuple(models),
            tuple(_worker(worker, report, names) for worker, report in sorted(living.items())),
        )

    async def _backlog_of(self, pool: str) -> PoolBacklog | str:
        """A pool's backlog, or why it cannot be read."""
        try:
            return await self._backlog.of_pool(pool)
        except InferenceError as error:
            return error.message

    def _model(
        self, model: ModelAnnouncement, backlog: PoolBacklog | str, by_worker: _Done, workers: int, now_ms: int
    ) -> ServedModel:
        name = model.metadata.name
        waiting = None
        if not isinstance(backlog, str):
            waiting = sum(partition.records for partition in backlog.get(model.topic, ()))
        done = [each for versions in by_worker for each in versions]
        per_s = work_rate(by_worker) if self._rate is None else self._rate(name, now_ms)
        last_ms = max((each.last_inference_ms for each in done), default=0)
        counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        for each in done:
            for index, count in enumerate(each.latency_counts[: len(counts)]):
                counts[index] += count
        return ServedModel(
            name,
            model.pool,
            tuple(_version(version, done, workers) for version in model.metadata.versions),
            waiting,
            _seconds(waiting, per_s),
            sum(each.success.count for each in done),
            sum(each.fail.count for each in done),
            sum(each.rows for each in done),
            sum(each.batches for each in done),
            rfc3339(last_ms) if last_ms > 0 else None,
            _batch_sizes(done),
            tuple(counts),
        )


def _by_model(reports: Iterable[WorkerReport]) -> dict[tuple[str, str], list[list[ModelStatistics]]]:
    """What each worker tells of each model, by pool and model."""
    found: dict[tuple[str, str], list[list[ModelStatistics]]] = {}
    for report in reports:
        versions: dict[str, list[ModelStatistics]] = {}
        for each in report.models:
            versions.setdefault(each.name, []).append(each)
        for name, told in versions.items():
            found.setdefault((report.pool, name), []).append(told)
    return found


def _seconds(waiting: int | None, per_s: float | None) -> float | None:
    if waiting == 0:
        return 0.0
    return None if waiting is None or not per_s else round(waiting / per_s, 3)


def _version(version: str, done: Iterable[ModelStatistics], workers: int) -> ServedVersion:
    told = [each for each in done if each.version == version]
    states: dict[str, int] = {}
    for each in told:
        states[each.state] = states.get(each.state, 0) + 1
    if workers > len(told):
        states["unloaded"] = states.get("unloaded", 0) + workers - len(told)
    reason = next((each.reason for each in told if each.reason), "")
    return ServedVersion(version, states, sum(each.memory_bytes for each in told), reason)


def _batch_sizes(done: Iterable[ModelStatistics]) -> tuple[BatchSize, ...]:
    counts: dict[int, int] = {}
    infer_us: dict[int, int] = {}
    for each in done:
        for batch in each.batch_sizes:
            counts[batch.rows] = counts.get(batch.rows, 0) + batch.count
            infer_us[batch.rows] = infer_us.get(batch.rows, 0) + batch.infer_us
    return tuple(
        BatchSize(rows, count, round(infer_us[rows] / 1000 / max(1, count), 3))
        for rows, count in sorted(counts.items())
    )


def _pool(pool: str, backlog: PoolBacklog | str, models: Iterable[ServedModel], workers: int) -> ServedPool:
    of_pool = [model for model in models if model.pool == pool]
    if isinstance(backlog, str):
        return ServedPool(pool, len(of_pool), workers, None, None, backlog)
    waiting = sum(model.backlog or 0 for model in of_pool)
    times = [model.backlog_s for model in of_pool if model.backlog]
    # The workers' time is one: what waits for one model waits for the others, too.
    seconds = None if None in times else round(sum(each or 0.0 for each in times), 3)
    return ServedPool(pool, len(of_pool), workers, waiting, seconds)


def _worker(worker: str, report: WorkerReport, names: set[str]) -> RunningWorker:
    loaded = [each for each in report.models if each.state in _STATES_IN_MEMORY and each.name in names]
    return RunningWorker(
        worker,
        report.pool,
        report.host,
        report.state,
        rfc3339(report.started_ms),
        rfc3339(report.at_ms),
        report.version,
        report.devices,
        len(loaded),
        sum(each.memory_bytes for each in loaded),
    )
