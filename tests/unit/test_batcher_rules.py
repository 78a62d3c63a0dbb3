"""Batcher: priorities, queue policies and deadlines, by example."""

from __future__ import annotations

import pytest

from tests.unit.batcher_run import Line
from workers.batch_policy import batch_policy
from workers.batcher import Batcher, BatchPolicy, Entry, Refusal
from workers.model_config import ModelConfig, QueuePolicy


def entry(arrived_us: int, *, rows: int = 1, deadline_us: int | None = None, priority: int = 0) -> Entry[int]:
    return Entry(arrived_us, rows, "A", arrived_us, deadline_us, priority)


def arrivals_of(batch: list[Entry[int]] | None) -> list[int]:
    return [one.arrived_us for one in batch or []]


def test_levels_are_strict_and_a_batch_fills_up_with_the_lower_ones() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=3, priority_levels=3, default_priority_level=2))
    for number, priority in enumerate([3, 0, 1, 2, 1, 7]):
        batcher.add(entry(number, priority=priority))
    assert arrivals_of(batcher.cut(10)) == [2, 4, 1]
    assert arrivals_of(batcher.cut(10)) == [3, 5, 0]


def test_without_levels_a_priority_is_ignored() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=1))
    batcher.add(entry(0, priority=9))
    batcher.add(entry(1, priority=1))
    assert arrivals_of(batcher.cut(10)) == [0]


def test_past_the_age_bound_a_low_level_counts_as_the_highest() -> None:
    policy = BatchPolicy(max_batch_rows=1, priority_levels=2, default_priority_level=2, age_bound_us=1000)
    batcher: Batcher[int] = Batcher(policy)
    batcher.add(entry(0, priority=2))
    batcher.add(entry(500, priority=1))
    assert arrivals_of(batcher.cut(999)) == [500]
    batcher.add(entry(999, priority=1))
    assert arrivals_of(batcher.cut(1000)) == [0]


def test_a_group_of_a_higher_level_goes_before_an_older_one() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, priority_levels=2, default_priority_level=2))
    batcher.add(Entry(0, 1, "A", 0))
    batcher.add(Entry(1, 1, "B", 1, priority=1))
    assert arrivals_of(batcher.cut(10)) == [1]


def test_a_full_queue_refuses_one_more_of_its_level_only() -> None:
    policy = BatchPolicy(
        max_batch_rows=4,
        priority_levels=2,
        default_priority_level=2,
        queue_policies={2: QueuePolicy(max_queue_size=2)},
    )
    batcher: Batcher[int] = Batcher(policy)
    assert [batcher.add(entry(number)) for number in range(3)] == [None, None, Refusal.QUEUE_FULL]
    assert batcher.add(entry(3, priority=1)) is None
    assert batcher.requests == 3
    assert len(batcher.cut(10) or []) == 3
    assert batcher.add(entry(4)) is None


def test_a_timeout_rejects_at_its_moment_even_while_the_instance_runs() -> None:
    policy = BatchPolicy(max_batch_rows=4, default_queue_policy=QueuePolicy(default_timeout_us=700))
    batcher: Batcher[int] = Batcher(policy)
    late = entry(0)
    batcher.add(late)
    assert batcher.next_due(instance_free=False) == 700
    assert batcher.take_refused(699) == []
    assert batcher.take_refused(700) == [(late, Refusal.TIMED_OUT)]


DELAYING = QueuePolicy(timeout_action="delay", default_timeout_us=700)


def test_a_timeout_may_delay_instead_and_then_there_is_none_any_more() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=2, default_queue_policy=DELAYING))
    for arrived_us in (0, 100, 650):
        batcher.add(entry(arrived_us))
    assert arrivals_of(batcher.cut(700)) == [100, 650]
    assert batcher.take_refused(60_000_000) == []
    assert arrivals_of(batcher.cut(60_000_000)) == [0]


def test_a_request_that_is_delayed_by_its_own_timeout_rides_last_and_once() -> None:
    own = QueuePolicy(timeout_action="delay", allow_timeout_override=True)
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, default_queue_policy=own))
    for arrived_us, timeout_us in ((0, 0), (1, 100), (2, 0)):
        batcher.add(Entry(arrived_us, 1, "A", arrived_us, timeout_us=timeout_us))
    assert arrivals_of(batcher.cut(200)) == [0, 2, 1]


def test_a_delayed_request_of_another_shape_waits_even_for_those_that_are_not_due() -> None:
    policy = BatchPolicy(max_batch_rows=4, max_queue_delay_us=500, default_queue_policy=DELAYING)
    batcher: Batcher[int] = Batcher(policy)
    batcher.add(Entry(0, 1, "A", 0))
    batcher.add(Entry(1, 1, "B", 600))
    batcher.add(Entry(2, 1, "B", 650))
    assert batcher.cut(700) is None
    batcher.add(Entry(3, 2, "B", 700))
    assert arrivals_of(batcher.cut(710)) == [600, 650, 700]
    assert arrivals_of(batcher.cut(710)) == [0]


def test_it_wakes_up_to_refuse_what_has_become_hopeless() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=2))
    late = entry(0, deadline_us=5000)
    batcher.add(late)
    line = Line(100, 900)
    assert batcher.next_due(instance_free=False, durations=line) == 4001
    assert batcher.take_refused(4000, instance_free=False, durations=line) == []
    assert batcher.take_refused(4001, instance_free=False, durations=line) == [(late, Refusal.HOPELESS)]


def test_a_lower_level_does_not_slip_in_before_a_higher_one_that_does_not_fit() -> None:
    for durations in (None, Line(1, 1)):
        batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, priority_levels=2, default_priority_level=2))
        batcher.add(entry(0, rows=1))
        batcher.add(entry(1, rows=2, priority=1, deadline_us=9_000))
        batcher.add(entry(2, rows=3, priority=1))
        assert arrivals_of(batcher.cut(10, durations=durations)) == [1]
        assert arrivals_of(batcher.cut(10, durations=durations)) == [2, 0]


@pytest.mark.parametrize(
    ("default_us", "is_allowed", "own_us", "timeout_us"),
    [
        (0, False, 500, 0),
        (0, True, 500, 500),
        (700, True, 500, 500),
        (700, True, 900, 700),
        (700, True, 0, 700),
        (700, False, 500, 700),
    ],
)
def test_a_request_may_shorten_its_timeout_where_it_is_allowed(
    default_us: int, is_allowed: bool, own_us: int, timeout_us: int
) -> None:
    policy = BatchPolicy(
        max_batch_rows=1,
        default_queue_policy=QueuePolicy(default_timeout_us=default_us, allow_timeout_override=is_allowed),
    )
    assert policy.timeout_us(1, own_us) == timeout_us


def test_a_batch_leaves_before_its_delay_when_waiting_would_break_a_deadline() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=8, max_queue_delay_us=50_000))
    line = Line(100, 800)
    batcher.add(entry(0, deadline_us=10_000))
    due_us = batcher.next_due(durations=line)
    assert due_us == 10_000 - 900 - 112  # the estimate, and an eighth of it for haste
    assert batcher.cut(due_us - 1, durations=line) is None
    assert len(batcher.cut(due_us, durations=line) or []) == 1


def test_the_nearest_deadline_makes_a_batch_smaller_where_all_can_still_be_met() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=8))
    batcher.add(entry(0, deadline_us=1_250))
    for number in range(1, 6):
        batcher.add(entry(number, deadline_us=50_000))
    line = Line(100, 800)
    assert arrivals_of(batcher.cut(6, durations=line)) == [0, 1, 2, 3]
    assert arrivals_of(batcher.cut(1206, durations=line)) == [4, 5]


def test_under_overload_the_nearest_are_refused_rather_than_every_batch_made_small() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    for number in range(12):
        batcher.add(entry(number, deadline_us=2_050 if number < 2 else 3_000))
    line = Line(500, 500)
    assert arrivals_of(batcher.cut(12, durations=line)) == [2, 3, 4, 5]
    assert [(one.arrived_us, reason) for one, reason in batcher.take_refused(12)] == [
        (0, Refusal.OVERLOADED),
        (1, Refusal.OVERLOADED),
    ]


def test_nobody_is_refused_for_the_sake_of_requests_that_can_wait_or_of_a_lower_level() -> None:
    line = Line(500, 500)
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    batcher.add(entry(0, deadline_us=1_100))
    for number in range(1, 20):
        batcher.add(entry(number))
    assert arrivals_of(batcher.cut(20, durations=line)) == [0]
    ranked: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, priority_levels=2, default_priority_level=2))
    ranked.add(entry(0, priority=1, deadline_us=1_100))
    for number in range(1, 20):
        ranked.add(entry(number, deadline_us=2_600))
    assert arrivals_of(ranked.cut(20, durations=line)) == [0]


def test_an_estimate_that_refuses_everybody_is_put_to_the_test() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    line = Line(1, 1_000_000)
    ran = 0
    for number in range(100):
        batcher.add(entry(number, deadline_us=number + 5000))
        batcher.take_refused(number, durations=line)
        ran += len(batcher.cut(number, durations=line) or [])
        assert batcher.requests == 0
    assert ran == 3


def test_an_instance_that_comes_free_too_late_makes_a_request_hopeless() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    late = entry(0, deadline_us=5000)
    batcher.add(late)
    line = Line(100, 900)
    assert batcher.take_refused(0, instance_free=False, durations=line, free_us=4000) == []
    assert batcher.take_refused(0, instance_free=False, durations=line, free_us=4001) == [(late, Refusal.HOPELESS)]


def test_a_batch_is_prepared_ahead_where_deadlines_are_far_away() -> None:
    line = Line(100, 600)
    for deadline_us, prepared in ((10_009, 0), (10_010, 2)):
        batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, preferred_rows=(2,)))
        batcher.add(entry(0, deadline_us=deadline_us))
        batcher.add(entry(1))
        assert len(batcher.cut(10, instance_free=False, durations=line) or []) == prepared
        assert batcher.cut(10, instance_free=False) is None


def test_the_remembered_ceiling_makes_batches_smaller_but_never_splits() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=8, max_queue_delay_us=1000))
    for number, rows in enumerate([1, 1, 1, 5]):
        batcher.add(entry(number, rows=rows))
    assert [arrivals_of(batcher.cut(10, limit_rows=2)) for _ in range(3)] == [[0, 1], [2], [3]]


def test_everything_comes_out_at_once_the_refused_too() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=8, max_queue_delay_us=1000))
    batcher.add(entry(0, deadline_us=5))
    batcher.add(entry(1))
    assert batcher.cut(5) is None  # sees that the first has expired
    assert sorted(arrivals_of(batcher.take_all())) == [0, 1]
    assert (batcher.rows, batcher.requests, batcher.next_due(), batcher.take_refused(9)) == (0, 0, None, [])


def test_the_policy_follows_from_the_configuration() -> None:
    plain = batch_policy(ModelConfig("m", "device", 8, dynamic_batching=True, max_queue_delay_us=50))
    assert plain == BatchPolicy(max_batch_rows=8, max_queue_delay_us=50)
    assert not plain.is_ranked
    assert batch_policy(ModelConfig("m", "device")) == BatchPolicy(max_batch_rows=1, alone=True)
    ranked = batch_policy(
        ModelConfig(
            "m",
            "device",
            8,
            dynamic_batching=True,
            priority_levels=3,
            default_priority_level=2,
            queue_policies={1: QueuePolicy(max_queue_size=5)},
        )
    )
    assert [ranked.level(priority) for priority in (-1, 0, 1, 3, 4)] == [2, 2, 1, 3, 2]
    assert (ranked.queue_policy(1), ranked.queue_policy(2)) == (QueuePolicy(max_queue_size=5), None)
