"""Ceiling: halves when memory lacks, comes back slowly, never below one row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.ceiling import Ceiling

S = 1_000_000
HOUR_US = 3600 * S


def test_it_is_the_maximum_until_memory_lacks() -> None:
    assert Ceiling(32).rows(0) == Ceiling(32).rows(HOUR_US) == 32
    assert Ceiling(0).rows(0) == 1  # a model without a batch dimension


def test_running_out_of_memory_halves_and_a_quiet_time_raises_by_a_step() -> None:
    ceiling = Ceiling(32)
    ceiling.note_out_of_memory(32, 0)
    assert ceiling.rows(0) == 16
    assert ceiling.rows(10 * S - 1) == 16
    assert ceiling.rows(10 * S) == 20
    assert ceiling.rows(20 * S) == 25
    assert ceiling.rows(HOUR_US) == 32


def test_a_batch_that_was_cut_before_does_not_halve_again() -> None:
    ceiling = Ceiling(32)
    ceiling.note_out_of_memory(32, 0)
    ceiling.note_out_of_memory(32, 9 * S)
    assert ceiling.rows(9 * S) == 16
    assert ceiling.rows(10 * S) == 20


def test_a_vain_step_goes_back_to_what_passes_and_the_next_waits_twice_as_long() -> None:
    ceiling = Ceiling(32)
    ceiling.note_out_of_memory(32, 0)
    ceiling.note_passed(16)
    now_us, waits = 0, []
    for _ in range(8):
        begun_us = now_us
        while ceiling.rows(now_us) == 16:
            now_us += S
        waits.append((now_us - begun_us) // S)
        ceiling.note_out_of_memory(ceiling.rows(now_us), now_us)
        assert ceiling.rows(now_us) == 16
    assert waits == [10, 20, 40, 80, 160, 320, 320, 320]
    ceiling.note_out_of_memory(16, now_us)  # memory has become scarcer: that is news
    assert [ceiling.rows(now_us), ceiling.rows(now_us + 10 * S)] == [8, 10]


def test_a_size_that_passed_before_and_lacks_memory_now_is_not_trusted_any_more() -> None:
    ceiling = Ceiling(32)
    ceiling.note_passed(32)
    ceiling.note_out_of_memory(16, 0)
    assert ceiling.rows(0) == 8
    ceiling.note_out_of_memory(8, 1)
    assert ceiling.rows(1) == 4


events = st.lists(
    st.tuples(st.sampled_from(["lack", "pass", "wait"]), st.integers(1, 128), st.integers(0, 400 * S)), max_size=40
)


@given(st.integers(0, 128), events)
def test_it_stays_within_bounds_falls_below_what_lacked_and_always_comes_back(
    max_rows: int, happened: list[tuple[str, int, int]]
) -> None:
    ceiling, now_us = Ceiling(max_rows), 0
    for what, rows, later_us in happened:
        now_us += later_us
        before = ceiling.rows(now_us)
        if what == "lack":
            ceiling.note_out_of_memory(rows, now_us)
            assert ceiling.rows(now_us) <= before
            assert rows == 1 or ceiling.rows(now_us) < rows
        elif what == "pass":
            ceiling.note_passed(rows)
            assert ceiling.rows(now_us) == before
        assert 1 <= ceiling.rows(now_us) <= max(1, max_rows)
    # A step is a quarter at least, a quiet time five minutes at most.
    assert ceiling.rows(now_us + 24 * HOUR_US) == max(1, max_rows)


@given(st.integers(2, 128), st.data())
def test_it_settles_at_what_memory_takes(max_rows: int, data: st.DataObject) -> None:
    """Whatever fits, no batch is much smaller than it for long, and few are too large."""
    memory_rows = data.draw(st.integers(1, max_rows))
    ceiling = Ceiling(max_rows)
    sizes = []
    for second in range(1200):
        rows = ceiling.rows(second * S)
        sizes.append(rows)
        while rows > max(1, memory_rows):
            ceiling.note_out_of_memory(rows, second * S)
            rows //= 2
        ceiling.note_passed(rows)
    settled = sizes[600:]
    assert sum(size > memory_rows for size in settled) <= 6
    assert min(settled) * 5 >= 4 * memory_rows
