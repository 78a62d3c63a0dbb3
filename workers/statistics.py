"""Statistics: what this worker has done with each model version, counted since it started. Pure: no clock, no asyncio.

Counting is a few additions per request; what is told is made only when somebody asks, and only of what has changed.
Must not know Kafka, queues or models.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from schemas.model import ModelRef
from schemas.worker_report import LATENCY_BOUNDS_MS, BatchStatistics, Duration, ModelStatistics

_BOUNDS_US = tuple(int(1000 * bound) for bound in LATENCY_BOUNDS_MS)
_NOTHING = ModelStatistics("", "").success  # the default itself: it is left out of what is told
_MAX_SIZES = 64  # batch sizes that are told apart; what comes beyond them counts in the totals only


class ModelCounters:
    """One model version's counts. Times are microseconds."""

    __slots__ = (
        "_changed",
        "_fail_us",
        "_fails",
        "_latencies",
        "_run_us",
        "_runs",
        "_sizes",
        "_success_us",
        "_successes",
        "_told",
        "_waited_us",
        "batches",
        "last_inference_ms",
        "rows",
    )

    def __init__(self) -> None:
        self._successes = self._success_us = 0
        self._fails = self._fail_us = 0
        self._runs = self._waited_us = 0
        self._run_us = [0, 0, 0]  # assemble, infer, answer: of each request that was run
        self._latencies = [0] * (len(_BOUNDS_US) + 1)
        self._sizes: dict[int, list[int]] = {}  # by rows: batches, and what assemble, infer and answer took in all
        self._changed = True
        self._told: ModelStatistics | None = None
        self.rows = 0
        self.batches = 0
        self.last_inference_ms = 0

    @property
    def is_used(self) -> bool:
        """Whether anything was ever counted."""
        return bool(self._successes or self._fails or self.batches)

    def note_batch(self, rows: int, assemble_us: int, infer_us: int, now_ms: int) -> None:
        """A batch of so many rows was run, whatever came of it."""
        self._changed = True
        self.rows += rows
        self.batches += 1
        self.last_inference_ms = now_ms
        size = self._sizes.get(rows)
        if size is None:
            if len(self._sizes) >= _MAX_SIZES:
                return
            size = self._sizes[rows] = [0, 0, 0, 0]
        size[0] += 1
        size[1] += assemble_us
        size[2] += infer_us

    def note_answers(
        self, rows: int, arrived_us: Sequence[int], cut_us: int, now_us: int, parts_us: tuple[int, int, int]
    ) -> None:
        """Requests of a batch of `rows` were answered at `now_us`; each took these parts to assemble, infer, answer."""
        self._changed = True
        count = len(arrived_us)
        latencies = self._latencies
        total_us = 0
        for at_us in arrived_us:
            took_us = now_us - at_us
            total_us += took_us
            latencies[bisect_left(_BOUNDS_US, took_us)] += 1
        self._successes += count
        self._success_us += total_us
        self._runs += count
        self._waited_us += total_us - count * (now_us - cut_us)
        run_us = self._run_us
        for index, part_us in enumerate(parts_us):
            run_us[index] += count * part_us
        size = self._sizes.get(rows)
        if size is not None:
            size[3] += parts_us[2]

    def note_failure(self, took_us: int) -> None:
        """A request has ended otherwise, so long after it arrived."""
        self._changed = True
        self._fails += 1
        self._fail_us += max(0, took_us)

    def told(self, ref: ModelRef) -> ModelStatistics:
        """All of it, without state and memory."""
        if self._changed or self._told is None:
            self._changed = False
            runs = self._runs
            assemble, infer, answer = (_duration(runs, total_us) for total_us in self._run_us)
            self._told = ModelStatistics(
                ref.name,
                ref.version,
                success=_duration(self._successes, self._success_us),
                fail=_duration(self._fails, self._fail_us),
                queue=_duration(runs, self._waited_us),
                assemble=assemble,
                infer=infer,
                answer=answer,
                rows=self.rows,
                batches=self.batches,
                last_inference_ms=self.last_inference_ms,
                batch_sizes=tuple(BatchStatistics(rows, *size) for rows, size in sorted(self._sizes.items())),
                latency_counts=tuple(self._latencies) if self._successes else (),
            )
        return self._told


def _duration(count: int, total_us: int) -> Duration:
    return Duration(count, total_us) if count else _NOTHING


class Statistics:
    """Counters by model version. Lives on the event loop."""

    def __init__(self) -> None:
        self._models: dict[ModelRef, ModelCounters] = {}

    def of(self, ref: ModelRef) -> ModelCounters:
        """The version's counters, made at the first call."""
        counters = self._models.get(ref)
        if counters is None:
            counters = self._models[ref] = ModelCounters()
        return counters

    def forget(self, refs: Iterable[ModelRef]) -> None:
        """These are not served any more."""
        for ref in refs:
            self._models.pop(ref, None)

    def used(self) -> dict[ModelRef, ModelCounters]:
        """Those that have counted anything."""
        return {ref: counters for ref, counters in self._models.items() if counters.is_used}
