"""Fleet: the workers of the installation, as their reports on the control topic tell. Knows no Kafka."""

from __future__ import annotations

from schemas.tensor import Buffer
from schemas.worker_report import WorkerReport, decode_report


class Fleet:
    """Reports by worker. Kept up to date by `apply`."""

    def __init__(self) -> None:
        self._reports: dict[str, WorkerReport] = {}

    def apply(self, key: Buffer | None, value: Buffer | None) -> None:
        """Take one control record in; other kinds than reports are left alone."""
        change = decode_report(key, value)
        if change is None:
            return
        worker, report = change
        if report is None:
            self._reports.pop(worker, None)
        else:
            self._reports[worker] = report

    def living(self, now_ms: int) -> dict[str, WorkerReport]:
        """The workers that have told something lately, by their id."""
        return {worker: report for worker, report in self._reports.items() if report.is_recent(now_ms)}

    def of_pool(self, pool: str, now_ms: int) -> dict[str, WorkerReport]:
        """Those of one pool."""
        return {worker: report for worker, report in self.living(now_ms).items() if report.pool == pool}
