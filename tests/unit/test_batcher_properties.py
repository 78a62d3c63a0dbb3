"""Batcher: priorities, queue policies and deadlines, as properties of whole runs."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.batcher_run import Arrival, Line, run
from workers.batcher import BatchPolicy, Refusal
from workers.entry import DELAYED_RANK
from workers.model_config import QueuePolicy

AGE_BOUND_US = 20_000

queue_policies = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(["reject", "delay"]),
    default_timeout_us=st.sampled_from([0, 3_000, 9_000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 3]),
)
policies = st.builds(
    BatchPolicy,
    max_batch_rows=st.integers(4, 9),
    max_queue_delay_us=st.sampled_from([0, 1000, 5000]),
    preferred_rows=st.sampled_from([(), (4,), (2, 4)]),
    alone=st.sampled_from([False, False, True]),
    priority_levels=st.sampled_from([0, 2, 3]),
    default_priority_level=st.sampled_from([1, 2]),
    age_bound_us=st.just(AGE_BOUND_US),
    default_queue_policy=st.none() | queue_policies,
    queue_policies=st.dictionaries(st.integers(1, 3), queue_policies, max_size=2),
)
loads = st.lists(
    st.builds(
        Arrival,
        gap_us=st.integers(0, 3000),
        rows=st.integers(1, 4),
        shape=st.sampled_from("AB"),
        ttl_us=st.none() | st.integers(0, 25_000),
        priority=st.integers(0, 4),
        timeout_us=st.sampled_from([0, 0, 1500]),
        start_us=st.none() | st.integers(0, 25_000),
    ),
    max_size=50,
)
lines = st.builds(Line, row_us=st.sampled_from([100, 700]), base_us=st.sampled_from([0, 2_000, 10_000]))


@given(policies, loads, lines, st.booleans(), st.none() | st.integers(1, 4))
def test_every_request_ends_once_in_a_batch_that_is_allowed_or_with_a_reason_that_holds(
    policy: BatchPolicy, load: list[Arrival], line: Line, known: bool, limit_rows: int | None
) -> None:
    ended = run(policy, load, line, known=known, limit_rows=limit_rows)
    out = [entry.payload for _, batch in ended.batches for entry in batch]
    out += [entry.payload for _, entry, _ in ended.refused]
    assert sorted(out) == list(range(len(load)))
    limit = policy.max_batch_rows if limit_rows is None else limit_rows
    for cut_us, batch in ended.batches:
        assert len(batch) == 1 or sum(entry.rows for entry in batch) <= limit
        assert len(batch) == 1 or not policy.alone
        assert len({entry.signature for entry in batch}) == 1
        assert all(entry.begin_by_us is None or cut_us < entry.begin_by_us for entry in batch)
    for at_us, entry, reason in ended.refused:
        deadline_us = entry.deadline_us
        if reason is Refusal.EXPIRED:
            assert deadline_us is not None
            assert deadline_us <= at_us
        elif reason is Refusal.UNSTARTED:
            assert entry.start_by_us is not None
            assert entry.start_by_us <= at_us
        elif reason in (Refusal.OVERLOADED, Refusal.HOPELESS):
            assert known
            assert deadline_us is not None
        elif reason is Refusal.TIMED_OUT:
            level = policy.level(entry.priority)
            queue_policy = policy.queue_policy(level)
            assert queue_policy is not None
            assert queue_policy.timeout_action == "reject"
            assert entry.arrived_us + policy.timeout_us(level, entry.timeout_us) <= at_us
        elif reason is Refusal.QUEUE_FULL:
            assert any(one is not None and one.max_queue_size for one in map(policy.queue_policy, (1, 2, 3)))


@given(policies, loads, lines, st.booleans())
def test_order_is_kept_within_level_and_shape(
    policy: BatchPolicy, load: list[Arrival], line: Line, known: bool
) -> None:
    ended = run(policy, load, line, known=known)
    ridden = [entry for _, batch in ended.batches for entry in batch]
    ridden.sort(key=lambda entry: (str(entry.signature), entry.level))
    for (_, level), riders in groupby(ridden, key=lambda entry: (entry.signature, entry.level)):
        order = [entry.payload for entry in riders]
        assert level == DELAYED_RANK or order == sorted(order)


@given(policies, loads, lines)
def test_within_a_batch_nobody_rides_before_a_higher_level_but_the_aged(
    policy: BatchPolicy, load: list[Arrival], line: Line
) -> None:
    for cut_us, batch in run(policy, load, line, known=True).batches:
        ranks = [entry.rank(cut_us - AGE_BOUND_US) for entry in batch]
        assert ranks == sorted(ranks)


@given(loads, lines)
def test_a_low_level_is_served_by_age_once_it_has_waited_for_the_bound(load: list[Arrival], line: Line) -> None:
    """Nobody that came more than a bound later rides before it, whatever the level."""
    policy = BatchPolicy(max_batch_rows=4, priority_levels=4, default_priority_level=4, age_bound_us=AGE_BOUND_US)
    patient = [Arrival(arrival.gap_us, arrival.rows, "A", None, arrival.priority) for arrival in load]
    batches = run(policy, patient, line, known=True).batches
    for number, (cut_us, batch) in enumerate(batches):
        newest_us = max(entry.arrived_us for entry in batch)
        for _, later in batches[number + 1 :]:
            for entry in later:
                is_aged = entry.arrived_us <= cut_us - AGE_BOUND_US
                assert not is_aged or newest_us <= max(entry.arrived_us, cut_us - AGE_BOUND_US)


@given(loads, st.sampled_from([2_000, 10_000]))
def test_hopeless_is_only_who_could_not_have_ended_in_time_alone(load: list[Arrival], base_us: int) -> None:
    line = Line(300, base_us)
    ended = run(BatchPolicy(max_batch_rows=6), load, line, known=True)
    ends = [0, *(cut_us + 300 * sum(one.rows for one in batch) + base_us for cut_us, batch in ended.batches)]
    for at_us, entry, reason in ended.refused:
        if reason is Refusal.HOPELESS:
            assert entry.deadline_us is not None
            # The instance was free at `at_us`, or comes free when the batch ends that was cut last by then.
            begun = sum(1 for cut_us, _ in ended.batches if cut_us <= at_us)
            assert max(at_us, ends[begun]) + 300 * entry.rows + base_us > entry.deadline_us


@given(loads, lines)
def test_whoever_rides_ends_before_the_deadline_when_the_duration_is_known(load: list[Arrival], line: Line) -> None:
    ended = run(BatchPolicy(max_batch_rows=6, max_queue_delay_us=2000), load, line, known=True)
    hopeless = 0
    for cut_us, batch in ended.batches:
        end_us = cut_us + (line.estimate_us(sum(entry.rows for entry in batch)) or 0)
        late = [entry for entry in batch if entry.deadline_us is not None and entry.deadline_us < end_us]
        hopeless += len(late)
    assert hopeless <= len(load) // 32  # those that are run so that a wrong estimate is found out


@given(loads, lines)
def test_what_is_delayed_goes_after_everything_that_is_not(load: list[Arrival], line: Line) -> None:
    policy = BatchPolicy(
        max_batch_rows=4, default_queue_policy=QueuePolicy(timeout_action="delay", default_timeout_us=4000)
    )
    ended = run(policy, load, line, known=False)
    for number, (cut_us, batch) in enumerate(ended.batches):
        for entry in batch:
            if entry.level != DELAYED_RANK or entry.arrived_us + 4000 > cut_us:
                continue
            for later_us, later in ended.batches[number + 1 :]:
                # Whoever rode later, was there, had the same shape and was not delayed when it was its turn: none.
                assert not [
                    one
                    for one in later
                    if one.signature == entry.signature
                    and one.arrived_us <= cut_us < one.arrived_us + 4000
                    and later_us > cut_us
                    and one.level != DELAYED_RANK
                ]
            others = [one for _, rest in ended.batches[number + 1 :] for one in rest if one.arrived_us <= cut_us]
            if all(one.level == DELAYED_RANK for one in batch):  # a batch of the delayed only: nobody else was there
                assert all(one.arrived_us + 4000 <= cut_us for one in others)
