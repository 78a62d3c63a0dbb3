"""The batching simulator: it conserves requests, and no schedule beats its bound."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarks.batching_sim import settings_of
from tests.benchmarks.sim_arrivals import PATTERNS
from tests.benchmarks.sim_bound import most_on_time
from tests.benchmarks.sim_device import Device, simulate

devices = st.builds(
    Device,
    row_us=st.integers(1, 3),
    base_us=st.integers(0, 5),
    max_rows=st.integers(1, 3),
    instances=st.integers(1, 2),
    slo_us=st.integers(2, 20),
)
small_arrivals = st.lists(st.integers(0, 25), min_size=1, max_size=7).map(sorted)


def best_of_all(arrivals: list[int], device: Device) -> int:
    """The most that any schedule answers in time, by trying all: batches of any of the requests, at any time."""

    @cache
    def best(left: frozenset[int], free_us: tuple[int, ...]) -> int:
        most = 0
        at_us = free_us[0]  # the instance that is free first takes the next batch, or is not used any more
        if len(free_us) > 1:
            most = best(left, free_us[1:])
        ordered = sorted(left)
        for chosen in product((False, True), repeat=len(ordered)):
            batch = [request for request, is_in in zip(ordered, chosen, strict=True) if is_in]
            if not 0 < len(batch) <= device.max_rows:
                continue
            end_us = max(at_us, arrivals[batch[-1]]) + device.run_us(len(batch))
            if end_us <= arrivals[batch[0]] + device.slo_us:
                later = tuple(sorted((*free_us[1:], end_us)))
                most = max(most, len(batch) + best(left - set(batch), later))
        return most

    return best(frozenset(range(len(arrivals))), (0,) * device.instances)


@settings(max_examples=60, deadline=None)
@given(small_arrivals, devices)
def test_no_schedule_answers_more_in_time_than_the_bound(arrivals: list[int], device: Device) -> None:
    assert best_of_all(arrivals, device) <= most_on_time(arrivals, device) <= len(arrivals)


def test_the_bound_is_reached_where_all_are_there_at_once() -> None:
    device = Device(row_us=1, base_us=2, max_rows=3, instances=2, slo_us=10)
    assert (
        most_on_time([0] * 20, device)
        == 12
        == best_of_all([0] * 7, Device(row_us=1, base_us=2, max_rows=3, instances=1, slo_us=10)) * 2
    )


wide_devices = st.builds(
    Device,
    row_us=st.integers(50, 500),
    base_us=st.integers(0, 5_000),
    max_rows=st.integers(1, 16),
    instances=st.integers(1, 3),
    slo_us=st.integers(5_000, 50_000),
)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([*PATTERNS]), wide_devices, st.floats(0.3, 1.5), st.integers(0, 1 << 20))
def test_every_rule_runs_each_request_at_most_once_and_none_beats_the_bound(
    pattern: str, device: Device, load: float, seed: int
) -> None:
    arrivals = PATTERNS[pattern](load * device.capacity_s, 300 / device.capacity_s, seed)
    bound = most_on_time(arrivals, device)
    for grid in settings_of(device).values():
        for setting in grid:
            run = simulate(setting.rule(arrivals, device), arrivals, device)
            assert sum(run.batches) == len(run.answered_us) <= len(arrivals)
            assert run.on_time(arrivals, device.slo_us) <= bound


def test_a_light_load_is_answered_in_full_by_every_rule() -> None:
    device = Device(row_us=100, base_us=1_000, max_rows=8, instances=1, slo_us=50_000)
    arrivals = [10_000 * number for number in range(50)]
    for grid in settings_of(device).values():
        for setting in grid:
            assert simulate(setting.rule(arrivals, device), arrivals, device).on_time(arrivals, device.slo_us) == 50


@pytest.mark.parametrize("pattern", [*PATTERNS])
def test_arrivals_ascend_have_the_mean_rate_and_follow_from_the_seed(pattern: str) -> None:
    arrivals = PATTERNS[pattern](100.0, 400.0, 7)
    assert arrivals == sorted(arrivals) == PATTERNS[pattern](100.0, 400.0, 7)
    assert arrivals != PATTERNS[pattern](100.0, 400.0, 8)
    assert 0.8 < len(arrivals) / 40_000 < 1.2
