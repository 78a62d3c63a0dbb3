"""Who runs too long or is cancelled is answered once and at once; whatever its run still brings is thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from schemas.cancellation import Cancellation, cancellation_key, encode_cancellation
from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef, TensorSpec
from schemas.progress import Progress
from schemas.record import Envelope, Origin
from schemas.request import InferenceRequest
from schemas.response import InferenceResponse
from schemas.tensor import tensor_from_list
from workers.acks import AckTracker
from workers.answers import Answers
from workers.arrival import BrokerClock
from workers.backend import TransientError
from workers.batch import Outputs
from workers.batch_run import Abandoned, Batch, Finished, after_hanging
from workers.bisection import Part
from workers.cancellations import Cancellations
from workers.delivery import Delivery, Partition
from workers.request_entry import entry_of, read_clocks
from workers.reruns import Reruns
from workers.statistics import ModelCounters
from workers.under_way import UnderWay
from workers.work import Work

_TOPIC = "t.infer.m"
_REF = ModelRef("m", "1")


class Book:
    """A recorder that notes what it is told, by request id."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.errors: dict[str, ErrorCode] = {}
        self.told = 0
        self.counters = ModelCounters()
        self.answers = Answers(_REF, self, self.counters, in_order=False, batched=True, labels={})

    def succeed(self, answered: Sequence[tuple[Work, InferenceResponse]]) -> None:
        for work, response in answered:
            self.values[work.envelope.id] = response.outputs[0].to_list()
            self.told += 1

    def fail(
        self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str, started_ms: int = 0
    ) -> None:
        self.errors[envelope.id] = error.code
        self.told += 1

    async def fetch_claim(self, key: str) -> bytes:
        raise NotImplementedError

    async def flush(self) -> None:
        raise NotImplementedError


def works(count: int, **envelope: Any) -> list[Work]:
    partition = Partition(_TOPIC, 0, AckTracker(Progress(0, 0)), BrokerClock())
    request = InferenceRequest((tensor_from_list("IN", "FP32", (1, 1), [1.0]),))
    return [
        Work(Delivery(partition, Origin(_TOPIC, 0, n), 0, [], b""), Envelope(str(n), **envelope), request, started_ms=5)
        for n in range(count)
    ]


def batch_of(them: list[Work]) -> Batch:
    return Batch(them, [1] * len(them), [0] * len(them), 0)


def outputs(count: int) -> Outputs:
    spec = (TensorSpec("OUT", "FP32", (1,)),)
    return Outputs({"OUT": np.arange(count, dtype=np.float32).reshape(count, 1)}, spec, count, batched=True)


def cancelled(*offsets: int) -> Cancellations:
    cancellations = Cancellations()
    cancellations.know(_TOPIC, 1)
    for offset in offsets:
        cancellations.apply(cancellation_key(Origin(_TOPIC, 0, offset), 1), encode_cancellation(Cancellation(1)))
    return cancellations


def finish(book: Book, batch: Batch) -> None:
    count = len(batch.works)
    book.answers.finish(Finished(batch, [], 0, 9, 1), [Part(0, count, outputs(count), None)])


def test_a_member_that_runs_too_long_is_masked_out_and_its_neighbours_get_their_own_rows() -> None:
    book = Book()
    under_way = UnderWay("m", book.answers)
    them = works(3)
    them[1].envelope = Envelope("1", execution_timeout_ms=10)
    batch = batch_of(them)
    under_way.begin(batch)
    assert under_way.next_due_us(100) == 10_100  # not begun: it may begin at any moment
    under_way.end_overdue(1 << 60)
    assert book.told == 0
    batch.begun_us = 5000
    assert under_way.next_due_us(100) == 15_000
    under_way.end_overdue(14_999)
    assert book.told == 0
    under_way.end_overdue(15_000)
    under_way.end_overdue(15_000)
    assert under_way.next_due_us(15_000) is None
    assert (book.errors, book.told) == ({"1": ErrorCode.EXECUTION_TIMEOUT}, 1)
    under_way.leave(batch)
    finish(book, batch)
    assert (book.values, book.told) == ({"0": [0.0], "2": [2.0]}, 3)
    told = book.counters.told(_REF)
    assert (told.success.count, told.fail.count, told.rows) == (2, 1, 3)


def test_runs_that_failed_in_passing_count_for_the_execution_timeout() -> None:
    book = Book()
    under_way = UnderWay("m", book.answers)
    [work] = works(1, execution_timeout_ms=10)
    work.ran_us = 4000
    batch = batch_of([work])
    batch.begun_us = 1000
    under_way.begin(batch)
    assert under_way.next_due_us(1000) == 7000
    under_way.end_overdue(6999)
    assert not work.is_over
    under_way.end_overdue(7000)
    assert work.is_over


def test_who_is_cancelled_while_running_is_answered_once_also_when_the_batch_fails() -> None:
    book = Book()
    under_way = UnderWay("m", book.answers)
    batch = batch_of(works(3))
    batch.begun_us = 1
    under_way.begin(batch)
    for _ in range(2):
        under_way.end_cancelled(cancelled(0, 2, 9))
    assert book.errors == {"0": ErrorCode.CANCELLED, "2": ErrorCode.CANCELLED}
    failed = InferenceError(ErrorCode.MODEL_FAILED, "it failed")
    parts = [Part(n, 1, None, failed) for n in range(3)]
    book.answers.finish(Finished(batch, parts, 0, 9, 5), parts)
    assert (book.errors["1"], book.told) == (ErrorCode.MODEL_FAILED, 3)
    assert [work.started_ms for work in batch.works] == [5, 5, 5]


def test_who_is_only_prepared_never_began() -> None:
    book = Book()
    under_way = UnderWay("m", book.answers)
    batch = batch_of(works(2))
    under_way.begin(batch)
    under_way.end_cancelled(cancelled(1))
    assert [work.started_ms for work in batch.works] == [5, 0]
    assert batch.out(0) == [1]


def test_a_batch_that_was_to_begin_leaves_out_who_is_over_or_too_late() -> None:
    batch = batch_of(works(5))
    batch.works[0].is_over = True
    batch.works[1].envelope = Envelope("1", start_by=Deadline(10))
    batch.works[2].envelope = Envelope("2", deadline=Deadline(10), start_by=Deadline(99))
    batch.works[3].envelope = Envelope("3", start_by=Deadline(10))
    batch.works[3].failed_runs = 1  # it has begun once, in time
    assert batch.out(9) == [0]
    assert batch.out(10) == [0, 1, 2]


def test_who_is_over_does_not_run_again_after_the_model_hung() -> None:
    batch = batch_of(works(3))
    batch.works[1].is_over = True
    batches, error = after_hanging("m", batch, 100)
    assert error is None
    assert [[work.envelope.id for work in single.works] for single in batches] == [["0"], ["2"]]


async def test_who_waits_for_another_run_is_cancelled_there_and_who_is_over_is_not_tried_again() -> None:
    book = Book()
    offered: asyncio.Queue[str] = asyncio.Queue()
    reruns = Reruns(_REF, book.answers, offer=lambda work, rows: offered.put_nowait(work.envelope.id))
    batch = batch_of(works(3))
    batch.works[2].is_over = True
    reruns.take(batch, Part(0, 3, None, TransientError("away")), 700)
    assert (reruns.requests, batch.works[0].ran_us, batch.works[2].failed_runs) == (2, 700, 0)
    hung = batch_of(works(6)[3:])
    reruns.take_abandoned(Abandoned(None, [(hung, {})]), timeout_ms=1)
    reruns.end_cancelled(cancelled(0, 4))
    assert book.errors == {"0": ErrorCode.CANCELLED, "4": ErrorCode.CANCELLED}
    async with asyncio.timeout(10):
        assert {await offered.get(), await offered.get()} == {"0", "1"}  # the lane does not queue who is over
    assert reruns.requests == 0
    assert hung.out(0) == [1]


@pytest.mark.parametrize("failed_runs", [0, 1])
def test_who_has_begun_once_need_not_begin_in_time_again(failed_runs: int) -> None:
    [work] = works(1, start_by=Deadline(5), deadline=Deadline(10))
    work.failed_runs = failed_runs
    entry = entry_of(work, 1, "s", 0)
    assert entry.deadline_us is not None
    assert (entry.start_by_us is None) == bool(failed_runs)
    assert work.begin_by == Deadline(10 if failed_runs else 5)


def test_what_the_envelope_says_of_clocks_comes_before_what_the_parameters_say() -> None:
    [work] = works(1, start_by=Deadline(5))
    parameters = {"timeout": 1, "deadline_ms": 50, "execution_timeout_ms": 7, "priority": 3}
    work.request = InferenceRequest(work.request.inputs, parameters=parameters)
    read_clocks(work, 0, 0)
    envelope = work.envelope
    assert (envelope.start_by, envelope.execution_timeout_ms) == (Deadline(5), 7)
    assert envelope.deadline is not None
    entry = entry_of(work, 1, "s", 0)
    assert (entry.priority, entry.timeout_us) == (3, 1)


def test_the_parameters_clocks_begin_at_the_records_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.request_entry.time.time_ns", lambda: 1_000_000_000_000)
    [work] = works(1)
    work.request = InferenceRequest(work.request.inputs, parameters={"timeout": 1500, "deadline_ms": 20})
    read_clocks(work, 3_000_000, 3_500_000)  # it came half a second ago
    assert work.envelope.start_by == Deadline(1_000_000 - 500 + 2)
    assert work.envelope.deadline == Deadline(1_000_000 - 500 + 20)
