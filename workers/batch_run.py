"""Batch, Finished and Abandoned: requests on their way to an instance, and how they come back from it.

Knows no thread, no queue and no Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from schemas.errors import ErrorCode, InferenceError
from workers.batch import Arrays
from workers.bisection import Part
from workers.work import Work


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that run together. `rows` are per request; times are microseconds of the monotonic clock.

    `load_begun_us`, `ready_us`: of the model's last load, 0 when it never had to be waited for. `begun_us`: when its
    instance began with it, 0 before; the instance's thread sets it.
    """

    works: Sequence[Work]
    rows: Sequence[int]
    arrived_us: Sequence[int]
    cut_us: int
    assembled_us: int = 0
    load_begun_us: int = 0
    ready_us: int = 0
    begun_us: int = 0

    @property
    def total_rows(self) -> int:
        """Rows of all requests together."""
        return sum(self.rows)

    def out(self, now_ms: int) -> list[int]:
        """Which of the requests must not be run any more, by the wall clock: it was cut in time, and had to wait."""
        return [
            number
            for number, work in enumerate(self.works)
            if work.is_over or ((begin_by := work.begin_by) is not None and begin_by.passed(now_ms))
        ]

    def singles(self) -> list[Batch]:
        """Each request that has no outcome yet as a batch of its own."""
        return [
            replace(self, works=[work], rows=[rows], arrived_us=[arrived_us], begun_us=0)
            for work, rows, arrived_us in zip(self.works, self.rows, self.arrived_us, strict=True)
            if not work.is_over
        ]


@dataclass(slots=True, eq=False)
class Finished:
    """A batch that has run. `runs` counts calls of the backend: 1, more after a failure. `out_rows` were not run."""

    batch: Batch
    parts: list[Part]
    begun_us: int
    ended_us: int
    runs: int
    out_rows: int = 0
    out_of_memory_rows: list[int] = field(default_factory=list)  # that had no memory, in the order of being tried


@dataclass(slots=True, eq=False)
class Abandoned:
    """What an instance had when it was abandoned. `waiting` was never run and goes to another instance as it is.

    What to do about `running` is told by `after_hanging`.
    """

    running: Batch | None
    waiting: list[tuple[Batch, Arrays]]


def after_hanging(model: str, batch: Batch, timeout_ms: int) -> tuple[list[Batch], InferenceError | None]:
    """What becomes of a batch that outran its execution timeout: its requests alone, or the error of its only one.

    Which request hangs the model cannot be seen from outside, so each is run again, alone and once, on an instance
    that is not stuck: the neighbours are answered, and the one that hangs again has failed. Counts as a failed run.
    """
    if len(batch.works) > 1:
        return batch.singles(), None
    error = InferenceError(
        ErrorCode.MODEL_FAILED,
        f"model {model!r} did not end within its execution timeout of {timeout_ms} ms",
        remedy="send less in one request, correct the model, or raise its execution timeout",
    )
    return [], error


def too_late(model: str, work: Work, now_ms: int) -> InferenceError:
    """The end of a request that was not begun in time."""
    deadline = work.envelope.deadline
    clock = "deadline" if deadline is not None and deadline.passed(now_ms) else "time to start"
    return InferenceError(
        ErrorCode.DEADLINE_EXCEEDED,
        f"the {clock} passed before model {model!r} could run the request",
        remedy="allow more time, or add workers",
    )


def ran_too_long(model: str, timeout_ms: int) -> InferenceError:
    """The end of a request that runs for longer than it may."""
    return InferenceError(
        ErrorCode.EXECUTION_TIMEOUT,
        f"model {model!r} did not end within the request's execution timeout of {timeout_ms} ms",
        field="execution_timeout_ms",
        value=timeout_ms,
        remedy="allow the request more time to run, or send less in one request",
    )
