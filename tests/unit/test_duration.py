"""DurationModel: what it learns from batches, and that it is never absurd."""

from __future__ import annotations

import random

from hypothesis import assume, given
from hypothesis import strategies as st

from workers.duration import UNLIMITED_ROWS, DurationModel

seeds = st.integers(0, 1 << 30)
rows_us = st.integers(10, 2_000)
bases_us = st.integers(0, 20_000)


def learn(model: DurationModel, row_us: int, base_us: int, count: int, seed: int, noise: float = 0.05) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        rows = chance.randint(1, 32)
        model.observe(rows, round((row_us * rows + base_us) * chance.uniform(1 - noise, 1 + noise)))


def is_near(model: DurationModel, row_us: int, base_us: int, share: float = 0.15) -> bool:
    expected = [(model.estimate_us(rows) or 0, row_us * rows + base_us) for rows in (1, 8, 32)]
    # What is off by little against the longest batch does not matter for the shortest.
    return all(abs(got - want) <= share * want + 0.05 * expected[-1][1] for got, want in expected)


@given(rows_us, bases_us, seeds)
def test_slope_and_base_are_found_in_noisy_durations(row_us: int, base_us: int, seed: int) -> None:
    model = DurationModel()
    learn(model, row_us, base_us, 200, seed)
    assert is_near(model, row_us, base_us)


@given(rows_us, bases_us, seeds, st.sampled_from([0.3, 3.0]))
def test_a_change_of_speed_is_followed(row_us: int, base_us: int, seed: int, factor: float) -> None:
    model = DurationModel()
    learn(model, row_us, base_us, 100, seed)
    learn(model, round(row_us * factor), round(base_us * factor), 60, seed + 1)
    assert is_near(model, round(row_us * factor), round(base_us * factor), 0.25)


@given(rows_us, bases_us, seeds)
def test_single_outliers_hardly_move_it(row_us: int, base_us: int, seed: int) -> None:
    model = DurationModel()
    learn(model, row_us, base_us, 100, seed)
    for spike in range(3):
        model.observe(8, 100 * (row_us * 8 + base_us))
        learn(model, row_us, base_us, 20, seed + spike)
    assert is_near(model, row_us, base_us, 0.25)


observed = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5_000_000)), min_size=3, max_size=40)


@given(observed, st.integers(0, 10_000_000))
def test_estimates_grow_with_rows_are_positive_and_agree_with_rows_within(
    batches: list[tuple[int, int]], budget_us: int
) -> None:
    model = DurationModel()
    for rows, took_us in batches:
        model.observe(rows, took_us)
    estimates = [model.estimate_us(rows) or 0 for rows in range(1, 70)]
    assert estimates == sorted(estimates)
    assert estimates[0] >= 1
    assert all(estimates[0] * rows >= estimate - 1 for rows, estimate in enumerate(estimates, 1))  # no negative base
    within = model.rows_within(budget_us)
    assert within == 0 or (model.estimate_us(within) or 0) <= budget_us
    assert within == UNLIMITED_ROWS or (model.estimate_us(within + 1) or 0) > budget_us


def test_nothing_is_known_at_first() -> None:
    model = DurationModel()
    for _ in range(2):
        model.observe(4, 1000)
        assert (model.estimate_us(1), model.rows_within(1)) == (None, UNLIMITED_ROWS)
    model.observe(4, 1000)
    assert model.estimate_us(4) == 1000


@given(st.integers(1, 64), st.integers(1, 1_000_000))
def test_of_one_size_only_nothing_is_ruled_out_that_could_be(rows: int, took_us: int) -> None:
    model = DurationModel()
    for _ in range(10):
        model.observe(rows, took_us)
    for other in (1, 8, 64):
        assert abs((model.estimate_us(other) or 0) - took_us * min(1, other / rows)) <= 1


@given(st.integers(0, 100_000), st.integers(1, 100_000))
def test_durations_that_fall_with_size_are_taken_as_flat(base_us: int, drop_us: int) -> None:
    assume(base_us >= drop_us)
    model = DurationModel()
    for _ in range(3):
        model.observe(1, base_us)
        model.observe(2, base_us - drop_us)
    assert model.estimate_us(1) == model.estimate_us(64)


@given(rows_us, bases_us)
def test_the_first_batch_of_another_size_is_learnt_from_at_once(row_us: int, base_us: int) -> None:
    model = DurationModel()
    for _ in range(20):
        model.observe(1, row_us + base_us)
    model.observe(32, row_us * 32 + base_us)
    assert is_near(model, row_us, base_us)
