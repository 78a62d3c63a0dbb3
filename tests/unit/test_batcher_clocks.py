"""Batcher: the time to start and the deadline are two things. Only the latter sizes batches and refuses early."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.batcher_run import Arrival, Line, run
from workers.batcher import Batcher, BatchPolicy, Entry, Refusal

_SLOW = Line(row_us=1000, base_us=50_000)


def entry(
    number: int, *, arrived_us: int = 0, start_by_us: int | None = None, deadline_us: int | None = None
) -> Entry[int]:
    return Entry(number, 1, "A", arrived_us, deadline_us, start_by_us=start_by_us)


def test_who_had_to_begin_by_now_is_refused_as_unstarted_and_not_before() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, max_queue_delay_us=100_000))
    late = entry(1, start_by_us=20_000)
    batcher.add(late)
    assert batcher.take_refused(19_999, instance_free=False, durations=_SLOW) == []
    assert batcher.next_due(instance_free=False, durations=_SLOW) == 20_000
    assert batcher.take_refused(20_000, instance_free=False, durations=_SLOW) == [(late, Refusal.UNSTARTED)]
    assert (batcher.rows, batcher.requests, batcher.cut(20_000)) == (0, 0, None)


def test_a_request_that_takes_longer_than_its_time_to_start_is_run_and_sizes_nothing() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    for number in range(4):
        batcher.add(entry(number, start_by_us=10_000))
    batch = batcher.cut(0, durations=_SLOW)
    assert batch is not None
    assert len(batch) == 4
    assert batcher.take_refused(0, durations=_SLOW) == []


def test_with_a_deadline_as_near_it_is_hopeless() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    hopeless = entry(1, deadline_us=10_000)
    batcher.add(hopeless)
    assert batcher.cut(0, durations=_SLOW) is None
    assert batcher.take_refused(0, durations=_SLOW) == [(hopeless, Refusal.HOPELESS)]


def test_a_batch_leaves_a_little_before_somebody_in_it_must_have_begun() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, max_queue_delay_us=1_000_000))
    batcher.add(entry(1))
    batcher.add(entry(2, start_by_us=30_000))
    due_us = batcher.next_due(durations=None)
    assert due_us == 25_000
    assert batcher.cut(24_999) is None
    batch = batcher.cut(due_us)
    assert batch is not None
    assert [one.payload for one in batch] == [1, 2]


def test_nothing_is_prepared_ahead_of_a_running_batch_while_somebody_must_begin_soon() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=1))
    batcher.add(entry(1, start_by_us=60_000))
    assert batcher.cut(0, instance_free=False, durations=Line(1000, 9000)) is None
    batcher = Batcher(BatchPolicy(max_batch_rows=1))
    batcher.add(entry(1, start_by_us=600_000))
    assert batcher.cut(0, instance_free=False, durations=Line(1000, 9000)) is not None


def test_the_earlier_of_both_moments_ends_a_wait() -> None:
    assert entry(1, start_by_us=5, deadline_us=7).begin_by_us == 5
    assert entry(1, start_by_us=9, deadline_us=7).begin_by_us == 7
    assert (entry(1, start_by_us=9).begin_by_us, entry(1, deadline_us=7).begin_by_us, entry(1).begin_by_us) == (
        9,
        7,
        None,
    )


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=40), st.integers(0, 40_000), st.booleans())
def test_on_an_idle_instance_nobody_misses_a_start_that_is_no_nearer_than_the_spare_time(
    gaps_us: list[int], start_us: int, known: bool
) -> None:
    load = [Arrival(gap_us, start_us=6000 + start_us) for gap_us in gaps_us]
    policy = BatchPolicy(max_batch_rows=64, max_queue_delay_us=1_000_000)
    ended = run(policy, load, Line(row_us=0, base_us=1), known=known)
    assert ended.refused == []
