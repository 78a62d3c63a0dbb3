"""ServiceRates: how many requests per second workers answer, measured from their successive reports. Pure.

A rate is the best that was seen lately, not the mean: workers that were idle for a while have not become slower.
Nothing is known before two reports with answers between them; then it is None, never a guess.
"""

from __future__ import annotations

import msgspec

from schemas.worker_report import WorkerReport

_LATELY_MS = 120_000
_SHORTEST_MS = 500  # two reports closer together say more about their timing than about the work
_MAX_MODELS = 10_000
_MAX_WORKERS = 1000  # per model


class _Seen(msgspec.Struct):
    """What is known of a model on a worker: the last count of answers, and the best rate of late."""

    at_ms: int
    answered: int
    best_per_s: float = 0.0
    best_at_ms: int = 0


class ServiceRates:
    """Rates by model and worker."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, _Seen]] = {}

    def note(self, worker: str, report: WorkerReport | None) -> None:
        """Take a worker's report in; None: it has stopped."""
        if report is None:
            for workers in self._seen.values():
                workers.pop(worker, None)
            return
        answered: dict[str, int] = {}
        for model in report.models:  # the versions of a model share its queue
            answered[model.name] = answered.get(model.name, 0) + model.success.count + model.fail.count
        for name, count in answered.items():
            if name not in self._seen and len(self._seen) >= _MAX_MODELS:
                del self._seen[next(iter(self._seen))]
            _note_count(self._seen.setdefault(name, {}), worker, report.at_ms, count)

    def per_s(self, model: str, now_ms: int) -> float | None:
        """Requests per second of all workers together; None when it is not known."""
        rates = [
            seen.best_per_s
            for seen in self._seen.get(model, {}).values()
            if seen.best_per_s and now_ms - seen.best_at_ms <= _LATELY_MS
        ]
        return sum(rates) or None


def _note_count(workers: dict[str, _Seen], worker: str, at_ms: int, answered: int) -> None:
    seen = workers.get(worker)
    if seen is None or answered < seen.answered or at_ms < seen.at_ms:  # new, or started anew under its old name
        if seen is None and len(workers) >= _MAX_WORKERS:
            del workers[next(iter(workers))]
        workers[worker] = _Seen(at_ms, answered)
        return
    if at_ms - seen.at_ms < _SHORTEST_MS:
        return
    per_s = 1000 * (answered - seen.answered) / (at_ms - seen.at_ms)
    if per_s >= seen.best_per_s or at_ms - seen.best_at_ms > _LATELY_MS:
        seen.best_per_s, seen.best_at_ms = per_s, at_ms
    seen.at_ms, seen.answered = at_ms, answered
