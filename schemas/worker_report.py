"""WorkerReport: a control record in which a worker tells, every few seconds, what it is and what it has done.

Statistics, the measured service rate and the status page are made of these. Counts are since the worker's start, so
that a reader that misses one report loses nothing. Knows no Kafka client.
"""

from __future__ import annotations

from itertools import zip_longest

import msgspec
from msgspec import structs

from schemas.tensor import Buffer

_KEY = "worker/"
_SILENT_MS = 30_000  # a worker that has told nothing for so long may have died
REPORT_EVERY_S = 2.0
LATENCY_BOUNDS_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10_000.0, 30_000.0)


class Duration(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often something was done, and for how long in all. The protocol's StatisticDuration, in microseconds."""

    count: int = 0
    total_us: int = 0

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.count + other.count, self.total_us + other.total_us)


class BatchStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Batches of `rows` rows that were run, and how long each part of them took in all, in microseconds."""

    rows: int
    count: int = 0
    assemble_us: int = 0
    infer_us: int = 0
    answer_us: int = 0

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        return BatchStatistics(
            self.rows,
            self.count + other.count,
            self.assemble_us + other.assemble_us,
            self.infer_us + other.infer_us,
            self.answer_us + other.answer_us,
        )


class ModelStatistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker has done with one model version, and whether it has it in memory.

    `state` is unloaded, fetching, loading, ready or failed, with the `reason` of the latter. success and fail are of
    requests, from arrival at the broker to their outcome; queue, assemble, infer and answer are the parts of those that
    were run, per request. `rows` were run in `batches` batches. `latency_counts` are the requests of `success` by
    LATENCY_BOUNDS_MS, the last count being of those above all bounds.
    """

    name: str
    version: str
    state: str = "unloaded"
    reason: str = ""
    memory_bytes: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    assemble: Duration = Duration()
    infer: Duration = Duration()
    answer: Duration = Duration()
    rows: int = 0
    batches: int = 0
    last_inference_ms: int = 0
    batch_sizes: tuple[BatchStatistics, ...] = ()
    latency_counts: tuple[int, ...] = ()

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        """What both have done together. State, reason and memory stay those of the first: they are one worker's own."""
        sizes = {batch.rows: batch for batch in self.batch_sizes}
        for batch in other.batch_sizes:
            sizes[batch.rows] = sizes[batch.rows] + batch if batch.rows in sizes else batch
        return structs.replace(
            self,
            success=self.success + other.success,
            fail=self.fail + other.fail,
            queue=self.queue + other.queue,
            assemble=self.assemble + other.assemble,
            infer=self.infer + other.infer,
            answer=self.answer + other.answer,
            rows=self.rows + other.rows,
            batches=self.batches + other.batches,
            last_inference_ms=max(self.last_inference_ms, other.last_inference_ms),
            batch_sizes=tuple(sizes[rows] for rows in sorted(sizes)),
            latency_counts=tuple(
                mine + theirs for mine, theirs in zip_longest(self.latency_counts, other.latency_counts, fillvalue=0)
            ),
        )


class WorkerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker. Times are Unix times in milliseconds, by the worker's clock. `version` is tidegate's."""

    pool: str
    state: str
    started_ms: int
    at_ms: int
    host: str = ""
    version: str = ""
    devices: tuple[str, ...] = ()
    models: tuple[ModelStatistics, ...] = ()

    def is_recent(self, now_ms: int) -> bool:
        """False for what a worker that has died left behind."""
        return now_ms - self.at_ms <= _SILENT_MS


_decoder = msgspec.json.Decoder(WorkerReport)


def report_key(worker_id: str) -> bytes:
    """The compaction key of a worker's reports; the value is absent once it has stopped."""
    return (_KEY + worker_id).encode()


def encode_report(report: WorkerReport) -> bytes:
    """The value of a report's record."""
    return msgspec.json.encode(report)


def decode_report(key: Buffer | None, value: Buffer | None) -> tuple[str, WorkerReport | None] | None:
    """Read a control record: (worker, report), (worker, None) for one that has stopped, None for other kinds of record
    and for one that cannot be read: it is only ever shown.
    """
    name = bytes(key or b"").decode(errors="replace")
    if not name.startswith(_KEY):
        return None
    try:
        return name.removeprefix(_KEY), None if value is None else _decoder.decode(value)
    except msgspec.DecodeError:
        return None
