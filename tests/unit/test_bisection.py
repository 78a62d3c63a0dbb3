"""Bisection: whoever is at fault fails alone, memory that lacks fails nobody, and the runs are bounded."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, InferenceError
from workers.backend import OutOfMemory, TransientError
from workers.batch import Outputs
from workers.bisection import Bisection, Part


class Model:
    """Fails on what it is told to, and notes what it ran: the requests of each call, in order."""

    def __init__(
        self, rows: list[int], *, poison: set[int] | None = None, memory_rows: int = 1 << 30, away: int | None = None
    ) -> None:
        """`away`: the number of the call that fails for a passing reason."""
        self.rows = rows
        self._poison = poison or set()
        self._memory_rows = memory_rows
        self._away = away
        self.calls: list[tuple[int, ...]] = []

    def run(self, first: int, count: int) -> Outputs:
        requests = tuple(range(first, first + count))
        self.calls.append(requests)
        if len(self.calls) - 1 == self._away:
            raise TransientError("the device is away")
        if sum(self.rows[number] for number in requests) > self._memory_rows:
            raise OutOfMemory("no memory")
        if self._poison & set(requests):
            raise ZeroDivisionError(f"poison in {requests}")
        return Outputs({}, [], 0, batched=True)


def bisect(model: Model) -> tuple[Bisection, list[Part]]:
    bisection = Bisection("m", model.rows, model.run)
    return bisection, bisection.parts()


def failed(parts: list[Part]) -> set[int]:
    return {part.first for part in parts if part.error is not None}


def check_is_whole(parts: list[Part], count: int) -> None:
    """Every request is in one part, in order."""
    assert [number for part in parts for number in range(part.first, part.first + part.count)] == list(range(count))
    assert all((part.outputs is None) != (part.error is None) for part in parts)


@pytest.mark.parametrize("place", range(32))
def test_one_poison_in_32_costs_at_most_ten_more_runs(place: int) -> None:
    bisection, parts = bisect(Model([1] * 32, poison={place}))
    assert failed(parts) == {place}
    check_is_whole(parts, 32)
    assert bisection.runs - 1 <= 2 * math.log2(32)


def test_a_half_that_must_be_at_fault_is_not_run_as_a_whole() -> None:
    model = Model([1] * 8, poison={7})
    bisection, _ = bisect(model)
    assert model.calls == [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3), (4, 5), (6,), (7,)]
    assert bisection.runs == 5


def test_a_request_is_not_failed_without_having_been_run_alone() -> None:
    """A fault that needs two requests together: each of them passes by itself."""

    class Pair(Model):
        def run(self, first: int, count: int) -> Outputs:
            outputs = super().run(first, count)
            if first == 0 and count == 2:
                raise ValueError("these two do not go together")
            return outputs

    bisection, parts = bisect(Pair([1, 1]))
    assert (failed(parts), bisection.runs) == (set(), 3)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=24), st.data())
def test_exactly_the_poisoned_fail_within_bounds(rows: list[int], data: st.DataObject) -> None:
    poison = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    model = Model(rows, poison=poison)
    bisection, parts = bisect(model)
    check_is_whole(parts, len(rows))
    assert failed(parts) == poison
    assert all(part.count == 1 for part in parts if part.error is not None)
    assert bisection.runs == len(model.calls) <= 2 * len(rows) - 1
    depth = math.ceil(math.log2(len(rows))) if len(rows) > 1 else 0
    assert bisection.runs <= 1 + 2 * depth * len(poison)
    assert len(set(model.calls)) == len(model.calls)  # nothing is run twice


@given(st.lists(st.integers(1, 4), min_size=1, max_size=24), st.integers(1, 60), st.data())
@example([1] * 32, 5, None)
def test_memory_that_lacks_fails_only_what_cannot_be_cut(
    rows: list[int], memory_rows: int, data: st.DataObject | None
) -> None:
    poison = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=2)) if data is not None else set()
    model = Model(rows, poison=poison, memory_rows=memory_rows)
    bisection, parts = bisect(model)
    check_is_whole(parts, len(rows))
    too_large = {number for number, count in enumerate(rows) if count > memory_rows}
    assert failed(parts) == poison | too_large
    assert {part.first for part in parts if isinstance(part.error, OutOfMemory)} == too_large
    assert bisection.runs <= 2 * len(rows) - 1
    assert all(size > memory_rows for size in bisection.out_of_memory_rows)
    tried = bisection.out_of_memory_rows
    alone = [size for size in tried if size in {rows[number] for number in too_large}]
    assert len(tried) - len(alone) <= math.log2(sum(rows)) + 1  # a size is not tried again once it was too large


def test_a_batch_without_memory_is_cut_by_rows_and_not_tried_again_at_that_size() -> None:
    model = Model([4, 1, 1, 1, 1], memory_rows=4)
    _, parts = bisect(model)
    assert failed(parts) == set()
    assert model.calls == [(0, 1, 2, 3, 4), (0,), (1, 2, 3, 4)]
    model = Model([1] * 16, memory_rows=2)
    bisection, _ = bisect(model)
    assert bisection.out_of_memory_rows == [16, 8, 4]
    assert bisection.runs == 3 + 8


def test_a_passing_failure_is_told_of_all_at_once_and_searched_by_nobody() -> None:
    model = Model([1] * 8, away=0)
    bisection, [part] = bisect(model)
    assert (part.first, part.count, part.is_transient, bisection.runs) == (0, 8, True, 1)
    assert part.error is not None
    assert part.error.code is ErrorCode.UNAVAILABLE


def test_a_passing_failure_within_a_bisection_leaves_the_rest_of_it_alone() -> None:
    _, parts = bisect(Model([1] * 8, poison={6}, away=1))
    check_is_whole(parts, 8)
    [away] = [part for part in parts if part.is_transient]
    assert (away.first, away.count) == (0, 4)
    assert {part.first for part in parts if part.error is not None and not part.is_transient} == {6}


def test_a_passing_failure_of_one_request_is_no_verdict_either() -> None:
    _, [part] = bisect(Model([1], away=0))
    assert part.is_transient


class UnshowableError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), UnshowableError(), ValueError("half a \udcff")])
def test_whatever_a_model_raises_becomes_an_error_that_can_be_sent(raised: BaseException) -> None:
    def run(first: int, count: int) -> Outputs:
        raise raised

    [part] = Bisection("m", [1], run).parts()
    assert part.error is not None
    assert part.error.code is ErrorCode.MODEL_FAILED
    assert part.error.__cause__ is raised
    part.error.message.encode()


def test_an_error_of_the_table_stays_as_it_is() -> None:
    error = InferenceError(ErrorCode.INVALID_REQUEST, "no such value", field="IN")

    def run(first: int, count: int) -> Outputs:
        raise error

    assert Bisection("m", [1], run).parts()[0].error is error
