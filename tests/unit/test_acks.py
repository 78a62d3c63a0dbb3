"""AckTracker and Progress: any completion order, any restart, within the broker's metadata limit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.progress import MAX_METADATA_CHARS, Progress, decode_progress, inherited_progress
from workers.acks import AckTracker


@given(st.data())
def test_any_completion_order_never_commits_past_an_incomplete_record(data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=60))
    start = data.draw(st.integers(0, 1000))
    offsets = [start + sum(gaps[:index]) for index in range(len(gaps))]
    tracker = AckTracker(Progress(start, start))
    assert all(tracker.deliver(offset) for offset in offsets)
    open_offsets = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        tracker.acknowledge(offset)
        open_offsets.discard(offset)
        progress = tracker.progress()
        assert all(not progress.is_done(other) for other in open_offsets)
        assert all(progress.is_done(other) for other in set(offsets) - open_offsets)
        assert progress.committed == min(open_offsets, default=offsets[-1] + 1)


@given(st.data())
def test_a_new_owner_runs_exactly_what_was_not_acknowledged(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 80))
    tracker = AckTracker(Progress(0, 0))
    for offset in range(count):
        tracker.deliver(offset)
    acknowledged: set[int] = set()
    read_until = count
    for _ in range(data.draw(st.integers(1, 4))):  # several owners, one after the other
        todo = sorted(set(range(read_until)) - acknowledged)
        for offset in data.draw(st.lists(st.sampled_from(todo), unique=True)) if todo else []:
            tracker.acknowledge(offset)
            acknowledged.add(offset)
        last = tracker.progress()
        tracker = AckTracker(decode_progress(last.committed, last.encode()))
        read_until = data.draw(st.integers(last.committed, count))
        ran = {offset for offset in range(last.committed, read_until) if tracker.deliver(offset)}
        assert ran == set(range(last.committed, read_until)) - acknowledged
        progress = tracker.progress()
        assert {offset for offset in range(count) if progress.is_done(offset)} == acknowledged


@given(
    st.integers(0, 2**62),
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), max_size=400),
)
def test_metadata_round_trips_within_the_limit_or_leaves_the_map_out(
    committed: int, ahead: int, steps: list[tuple[int, int]]
) -> None:
    runs, at = [], committed
    for gap, length in steps:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    progress = Progress(committed, committed + ahead, tuple(runs))
    metadata = progress.encode()
    assert len(metadata) <= MAX_METADATA_CHARS
    read = decode_progress(committed, metadata)
    assert read in (progress, Progress(committed, committed + ahead))
    if len(steps) <= 300:
        assert read == progress


def test_two_thousand_scattered_completions_fit_as_a_bitmap() -> None:
    done = sorted(random.Random(7).sample(range(1, 8000), 2000))
    tracker = AckTracker(Progress(0, 0))
    for offset in range(8001):
        tracker.deliver(offset)
    for offset in done:
        tracker.acknowledge(offset)
    metadata = tracker.progress().encode()
    assert len(metadata) < 1400
    assert decode_progress(0, metadata).done_count() == 2000


@pytest.mark.parametrize("raw_bytes", [3071, 3072, 3073])
def test_a_map_at_the_limit_is_kept_and_one_above_it_is_dropped(raw_bytes: int) -> None:
    # Runs of one offset, each gap wide enough for a two-byte varint: three bytes a run, too sparse for a bitmap.
    head_bytes = 3  # version, started, tag
    runs = [(200 * index, 200 * index + 1) for index in range(1, (raw_bytes - head_bytes) // 3 + 1)]
    spare = (raw_bytes - head_bytes) % 3
    if spare:  # lengthen the last runs by one byte each
        for index in range(spare):
            first, _ = runs[-1 - index]
            runs[-1 - index] = (first, first + 130)
    progress = Progress(0, 0, tuple(runs))
    metadata = progress.encode()
    assert len(metadata) <= MAX_METADATA_CHARS
    assert (decode_progress(0, metadata) == progress) == (raw_bytes <= 3072)


@pytest.mark.parametrize("metadata", [None, "", "?", "AQ", "/w", "Ag", "x" * 5000, "AQAB/////////////////w"])
def test_metadata_that_cannot_be_read_only_repeats_work(metadata: str | None) -> None:
    assert decode_progress(5, metadata) == Progress(5, 5)


@given(st.text(max_size=200))
def test_hostile_metadata_never_raises(metadata: str) -> None:
    assert decode_progress(5, metadata).committed == 5


def test_started_tells_running_from_queued() -> None:
    tracker = AckTracker(Progress(10, 10))
    for offset in (10, 11, 12):
        tracker.deliver(offset)
    tracker.start(11)
    progress = tracker.progress()
    assert (progress.committed, progress.started) == (10, 12)


def test_backlog_counts_unread_and_unacknowledged_but_not_what_is_done_out_of_order() -> None:
    tracker = AckTracker(Progress(0, 0))
    for offset in range(6):
        tracker.deliver(offset)
    tracker.acknowledge(3)
    tracker.acknowledge(4)
    assert tracker.progress().backlog(end_offset=10) == 8


def test_passing_transaction_markers_lets_the_backlog_reach_zero() -> None:
    tracker = AckTracker(Progress(0, 0))
    tracker.deliver(0)
    tracker.pass_gap(2)  # a commit marker stands at offset 1
    tracker.acknowledge(0)
    assert tracker.progress().backlog(end_offset=2) == 0


@pytest.mark.parametrize("committed", [-1, 4, 21])
def test_a_commit_that_is_absent_or_outside_the_partition_means_its_first_record(committed: int) -> None:
    metadata = Progress(committed, committed + 3).encode()
    assert inherited_progress(committed, metadata, first=5, end=20) == Progress(5, 5)


@pytest.mark.parametrize("committed", [5, 20])
def test_a_commit_inside_the_partition_is_inherited_with_all_it_says(committed: int) -> None:
    metadata = Progress(committed, committed + 3).encode()
    assert inherited_progress(committed, metadata, first=5, end=20) == Progress(committed, committed + 3)
