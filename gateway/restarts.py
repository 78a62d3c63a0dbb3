"""Restarts: pools whose workers start again and again and get nothing done, as their reports tell. Pure."""

from __future__ import annotations

from collections import deque

from schemas.worker_report import WorkerReport

_WITHIN_MS = 600_000
_YOUNG_MS = 90_000  # who has lived longer has not crashed on its first work
_LIVES = 3  # so many short lives in a row are no accident
_MAX_LIVES = 32  # remembered per pool
_MAX_POOLS = 1000


class _Life:
    """One process of a worker: when it began and last told of itself, whether it answered anything or said goodbye."""

    __slots__ = ("answered", "last_ms", "left", "started_ms", "worker")

    def __init__(self, worker: str, started_ms: int) -> None:
        self.worker = worker
        self.started_ms = started_ms
        self.last_ms = started_ms
        self.answered = False
        self.left = False


class Restarts:
    """The lives of each pool's workers, of late."""

    def __init__(self) -> None:
        self._lives: dict[str, deque[_Life]] = {}

    def note(self, worker: str, report: WorkerReport | None) -> None:
        """Take a worker's report in; None: it has stopped in good order."""
        if report is None:
            for gone in (life for lives in self._lives.values() for life in lives):
                if gone.worker == worker:
                    gone.left = True
            return
        lives = self._lives.get(report.pool, deque())
        if not lives:
            if len(self._lives) >= _MAX_POOLS:
                del self._lives[next(iter(self._lives))]
            lives = self._lives[report.pool] = deque(maxlen=_MAX_LIVES)
        key = (worker, report.started_ms)
        known = [each for each in lives if (each.worker, each.started_ms) == key]
        life = known[0] if known else _Life(*key)
        if not known:
            lives.append(life)
        life.last_ms = max(life.last_ms, report.at_ms)
        life.answered = life.answered or any(model.success.count or model.fail.count for model in report.models)

    def is_crash_looping(self, pool: str, now_ms: int) -> bool:
        """Whether at least three workers of the pool have started lately, none has lived long, answered anything or
        stopped in good order.
        """
        lives = [life for life in self._lives.get(pool, ()) if now_ms - life.last_ms <= _WITHIN_MS]
        short = [
            life for life in lives if not life.answered and not life.left and life.last_ms - life.started_ms < _YOUNG_MS
        ]
        # A pool that scales from zero to many starts many workers too, but side by side: an earlier one tells on.
        newest_ms = max((life.started_ms for life in short), default=0)
        ended = [life for life in short if life.last_ms <= newest_ms and life.started_ms < newest_ms]
        return len(short) == len(lives) and len(ended) >= _LIVES - 1
