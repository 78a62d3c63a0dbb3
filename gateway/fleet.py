"""Fleet: the workers of the installation, as their reports on the control topic tell. Knows no Kafka."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from schemas.tensor import Buffer
from schemas.worker_report import ModelStatistics, WorkerReport, decode_report

_KEPT_MS = 3600_000  # a worker that has told nothing for so long is forgotten, but for what it has done


class Fleet:
    """Reports by worker. Kept up to date by `apply`."""

    def __init__(self) -> None:
        self._reports: dict[str, WorkerReport] = {}
        self._departed: dict[tuple[str, str], ModelStatistics] = {}
        self._changed = asyncio.Event()
        self._observers: list[Callable[[str, WorkerReport | None], None]] = []

    def observe(self, note: Callable[[str, WorkerReport | None], None]) -> None:
        """Call `note` with each worker's report that comes, with None for a worker that has stopped."""
        self._observers.append(note)

    def apply(self, key: Buffer | None, value: Buffer | None) -> None:
        """Take one control record in; other kinds than reports are left alone."""
        change = decode_report(key, value)
        if change is None:
            return
        worker, report = change
        for note in self._observers:
            note(worker, report)
        former = self._reports.pop(worker, None)
        if former is not None and (report is None or report.started_ms != former.started_ms):
            self._fold(former)
        if report is not None:
            self._reports[worker] = report
            self._forget(report.at_ms - _KEPT_MS)
        self._changed.set()
        self._changed = asyncio.Event()

    def living(self, now_ms: int) -> dict[str, WorkerReport]:
        """The workers that have told something lately, by their id."""
        return {worker: report for worker, report in self._reports.items() if report.is_recent(now_ms)}

    def of_pool(self, pool: str, now_ms: int) -> dict[str, WorkerReport]:
        """Those of one pool."""
        return {worker: report for worker, report in self.living(now_ms).items() if report.pool == pool}

    def statistics(self) -> Iterator[ModelStatistics]:
        """What each worker has done, those included that are gone: so counts do not fall while this gateway lives."""
        for report in self._reports.values():
            yield from report.models
        yield from self._departed.values()

    async def wait_until(self, holds: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait for reports until the condition holds; False when it did not within the time. Cancel-safe."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._changed.wait()
        return holds()

    def _forget(self, before_ms: int) -> None:
        for worker in [worker for worker, report in self._reports.items() if report.at_ms < before_ms]:
            self._fold(self._reports.pop(worker))

    def _fold(self, report: WorkerReport) -> None:
        for model in report.models:
            key = (model.name, model.version)
            former = self._departed.get(key)
            self._departed[key] = model if former is None else former + model
