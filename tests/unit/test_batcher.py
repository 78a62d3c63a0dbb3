"""Batcher and BrokerClock: the promises of design section 6, as properties."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.arrival import BrokerClock
from workers.batcher import Batcher, BatchPolicy, Entry, Refusal


@dataclass(frozen=True)
class Arrival:
    gap_us: int
    rows: int
    shape: str
    ttl_us: int | None


arrivals = st.lists(
    st.builds(
        Arrival,
        gap_us=st.integers(0, 4000),
        rows=st.integers(1, 4),
        shape=st.sampled_from("AB"),
        ttl_us=st.none() | st.integers(0, 20_000),
    ),
    max_size=60,
)
policies = st.builds(
    BatchPolicy,
    max_batch_rows=st.integers(4, 9),
    max_queue_delay_us=st.sampled_from([0, 1000, 5000]),
    preferred_rows=st.sampled_from([(), (4,), (2, 4)]),
)


def simulate(
    policy: BatchPolicy, load: list[Arrival], busy_us: int
) -> tuple[list[tuple[int, list[Entry[int]]]], list[tuple[int, Entry[int]]]]:
    """One instance that takes `busy_us` per batch: the batches with their times, and the expired with theirs."""
    batcher: Batcher[int] = Batcher(policy)
    batches: list[tuple[int, list[Entry[int]]]] = []
    expired: list[tuple[int, Entry[int]]] = []
    now_us = free_us = 0
    todo = []
    for index, arrival in enumerate(load):
        now_us += arrival.gap_us
        deadline_us = None if arrival.ttl_us is None else now_us + arrival.ttl_us
        todo.append(Entry(index, arrival.rows, arrival.shape, now_us, deadline_us))
    now_us = 0
    while todo or batcher.rows:
        due_us = batcher.next_due()
        moments = [todo[0].arrived_us] if todo else []
        if due_us is not None:
            moments.append(max(due_us, free_us) if due_us <= now_us else due_us)
        now_us = max(now_us, min(moments))
        while todo and todo[0].arrived_us <= now_us:
            batcher.add(todo.pop(0))
        expired += [(now_us, entry) for entry, _ in batcher.take_refused(now_us)]
        while free_us <= now_us and (batch := batcher.cut(now_us)) is not None:
            batches.append((now_us, batch))
            free_us = now_us + busy_us
    return batches, expired


@given(policies, arrivals, st.sampled_from([0, 3000, 30_000]))
def test_no_request_is_lost_or_twice_and_no_batch_is_above_the_maximum(
    policy: BatchPolicy, load: list[Arrival], busy_us: int
) -> None:
    batches, expired = simulate(policy, load, busy_us)
    out = [entry.payload for _, batch in batches for entry in batch] + [entry.payload for _, entry in expired]
    assert sorted(out) == list(range(len(load)))
    assert all(sum(entry.rows for entry in batch) <= policy.max_batch_rows for _, batch in batches)


@given(policies, arrivals, st.sampled_from([0, 3000]))
def test_order_is_kept_within_a_shape_and_shapes_never_mix(
    policy: BatchPolicy, load: list[Arrival], busy_us: int
) -> None:
    batches, _ = simulate(policy, load, busy_us)
    for shape in "AB":
        order = [entry.payload for _, batch in batches for entry in batch if entry.signature == shape]
        assert order == sorted(order)
    assert all(len({entry.signature for entry in batch}) == 1 for _, batch in batches)


@given(policies, arrivals)
def test_nothing_waits_past_its_budget_while_an_instance_is_free(policy: BatchPolicy, load: list[Arrival]) -> None:
    batches, _ = simulate(policy, load, busy_us=0)
    for cut_us, batch in batches:
        for entry in batch:
            assert cut_us - entry.arrived_us <= policy.max_queue_delay_us


@given(policies, arrivals, st.sampled_from([0, 3000, 30_000]))
def test_an_expired_request_never_runs(policy: BatchPolicy, load: list[Arrival], busy_us: int) -> None:
    batches, expired = simulate(policy, load, busy_us)
    for cut_us, batch in batches:
        assert all(entry.deadline_us is None or cut_us < entry.deadline_us for entry in batch)
    assert all(entry.deadline_us is not None and entry.deadline_us <= at_us for at_us, entry in expired)


def entry(arrived_us: int, rows: int = 1, shape: str = "A", deadline_us: int | None = None) -> Entry[int]:
    return Entry(arrived_us, rows, shape, arrived_us, deadline_us)


def test_a_full_batch_leaves_before_its_delay_and_a_smaller_one_waits_for_it() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=2, max_queue_delay_us=1000))
    batcher.add(entry(0))
    assert batcher.cut(999) is None
    assert batcher.next_due() == 1000
    assert batcher.next_due(instance_free=False) is None
    batcher.add(entry(10))
    assert [item.arrived_us for item in batcher.cut(20) or []] == [0, 10]
    assert batcher.next_due() is None


def test_while_busy_a_batch_grows_and_only_a_full_one_is_prepared_ahead() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=3))
    batcher.add(entry(0))
    batcher.add(entry(1))
    assert batcher.cut(50_000, instance_free=False) is None
    batcher.add(entry(2))
    assert len(batcher.cut(50_000, instance_free=False) or []) == 3


def test_nothing_is_prepared_ahead_while_a_deadline_could_pass_before_it_runs() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=2))
    batcher.add(entry(0))
    batcher.add(entry(1, deadline_us=9_000))
    assert batcher.cut(5, instance_free=False) is None
    assert len(batcher.cut(5) or []) == 2
    batcher.add(entry(6))
    batcher.add(entry(7))
    assert len(batcher.cut(8, instance_free=False) or []) == 2


def test_a_spent_budget_sends_whole_batches_back_to_back() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, max_queue_delay_us=1000, preferred_rows=(2,)))
    for arrived_us in range(10):
        batcher.add(entry(arrived_us))
    assert [len(batcher.cut(60_000_000) or []) for _ in range(3)] == [4, 4, 2]


def test_the_largest_preferred_size_closes_a_batch_that_is_not_overdue() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=8, max_queue_delay_us=1000, preferred_rows=(2, 4)))
    for arrived_us in range(6):
        batcher.add(entry(arrived_us))
    assert len(batcher.cut(10) or []) == 4
    assert batcher.cut(10) is None


def test_shapes_that_alternate_are_grouped() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    for arrived_us in range(6):
        batcher.add(entry(arrived_us, shape="AB"[arrived_us % 2]))
    assert [[item.arrived_us for item in batcher.cut(10) or []] for _ in range(2)] == [[0, 2, 4], [1, 3, 5]]


def test_a_request_is_never_split() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    batcher.add(entry(0, rows=3))
    batcher.add(entry(1, rows=3))
    assert [len(batcher.cut(10) or []) for _ in range(2)] == [1, 1]
    with pytest.raises(ValueError, match="5 rows"):
        batcher.add(entry(2, rows=5))


def test_without_dynamic_batching_every_request_runs_alone_and_may_be_prepared_ahead() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, alone=True))
    batcher.add(entry(0, rows=2))
    batcher.add(entry(1))
    assert [len(batcher.cut(0, instance_free=False) or []) for _ in range(2)] == [1, 1]
    assert batcher.cut(0) is None


def test_flush_lets_everything_leave_at_once() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, max_queue_delay_us=1_000_000))
    batcher.add(entry(0))
    assert batcher.cut(1) is None
    assert len(batcher.cut(1, flush=True) or []) == 1


def test_a_removed_request_neither_runs_nor_expires() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4))
    first, second = entry(0, deadline_us=5), entry(1)
    batcher.add(first)
    batcher.add(second)
    assert batcher.remove(first)
    assert not batcher.remove(first)
    assert batcher.take_refused(10) == []
    assert batcher.cut(10) == [second]


def test_a_deadline_wakes_the_batcher_before_a_long_delay() -> None:
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=4, max_queue_delay_us=1_000_000))
    late = entry(0, deadline_us=700)
    batcher.add(late)
    assert batcher.next_due() == 700
    assert batcher.next_due(instance_free=False) == 700
    assert batcher.take_refused(699) == []
    assert batcher.take_refused(700) == [(late, Refusal.EXPIRED)]


@given(
    st.integers(-10_000, 10_000),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1, max_size=40),
)
def test_clocks_that_differ_by_seconds_neither_eat_nor_extend_a_budget(
    skew_ms: int, records: list[tuple[int, int]]
) -> None:
    """The estimate is off by the smallest delay seen and the millisecond of the broker's stamp, whatever the skew."""
    clock = BrokerClock()
    now_ms = 100_000
    least_delay_ms = min(delay_ms for _, delay_ms in records)
    seen = []
    for gap_ms, delay_ms in records:
        now_ms += gap_ms
        clock.observe(now_ms + skew_ms, (now_ms + delay_ms) * 1000)
        seen.append((now_ms, (now_ms + delay_ms) * 1000))
    for appended_ms, received_us in seen:
        estimate_us = clock.arrival_us(appended_ms + skew_ms, received_us)
        assert 0 <= estimate_us - appended_ms * 1000 <= least_delay_ms * 1000


def test_an_unknown_broker_clock_counts_from_now_and_drift_is_followed() -> None:
    clock = BrokerClock(window_us=1000)
    assert clock.arrival_us(123, 50_000) == 50_000
    clock.observe(0, 10)
    assert clock.arrival_us(0, 900) == 10
    clock.observe(0, 2000)  # the next window: the minimum of the former one still holds
    assert clock.arrival_us(0, 2500) == 10
    clock.observe(0, 3500)  # and then no longer
    assert clock.arrival_us(0, 5000) == 2000


def test_a_worker_that_wakes_to_a_backlog_knows_how_old_it_is() -> None:
    clock = BrokerClock(seed_us=1_000)
    clock.observe(0, 30_000_000)  # thirty seconds in the topic before anybody came
    assert clock.arrival_us(0, 30_000_000) == 1_000


def test_a_seed_of_another_broker_yields_to_what_the_partition_shows() -> None:
    clock = BrokerClock(seed_us=-5_000_000)
    for _ in range(16):
        clock.observe(0, 2_000)
    assert clock.arrival_us(0, 10_000) == 2_000
