"""When webhooks are tried again, and how a topic holds the waits."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.settings_webhooks import WebhookSettings
from gateway.webhook_schedule import PARTITIONS, Schedule, partition_of, ready_ms, retry_after_s

DAY_MS = 24 * 3600 * 1000
DEFAULT = Schedule.parse(WebhookSettings().webhook_retry_s)
chances = st.floats(0, 1)


@given(st.lists(chances, min_size=20, max_size=20))
def test_the_default_tries_for_about_a_day_and_no_longer(drawn: list[float]) -> None:
    now_ms, failures = 0, 1
    for chance in drawn:
        due_ms = DEFAULT.due_ms(failures, since_ms=0, now_ms=now_ms, chance=chance)
        if due_ms is None:
            break
        assert due_ms > now_ms
        now_ms, failures = due_ms, failures + 1
    assert failures == len(DEFAULT.delays_s) + 1
    assert 0.78 * DAY_MS < now_ms <= DAY_MS


def test_waits_grow_and_are_spread() -> None:
    assert list(DEFAULT.delays_s) == sorted(DEFAULT.delays_s)
    assert DEFAULT.due_ms(1, since_ms=0, now_ms=1000, chance=0.0) == 6000
    assert DEFAULT.due_ms(1, since_ms=0, now_ms=1000, chance=1.0) == 5000
    assert not DEFAULT.is_last(9)
    assert DEFAULT.is_last(10)


@given(st.integers(1, 12), st.integers(0, DAY_MS), chances, st.floats(0, 1e9))
def test_what_the_receiver_asks_for_is_waited_for_up_to_the_end(
    failures: int, elapsed_ms: int, chance: float, asked_s: float
) -> None:
    plain = DEFAULT.due_ms(failures, since_ms=0, now_ms=elapsed_ms, chance=chance)
    asked = DEFAULT.due_ms(failures, since_ms=0, now_ms=elapsed_ms, chance=chance, retry_after_s=asked_s)
    if plain is None:
        assert asked is None  # asking for a time asks for no more attempts
        return
    assert asked is not None
    assert plain <= asked <= max(plain, DEFAULT.total_ms)
    assert asked >= min(elapsed_ms + int(1000 * asked_s), DEFAULT.total_ms)


def test_no_waits_mean_one_attempt() -> None:
    assert Schedule.parse("").due_ms(1, since_ms=0, now_ms=0, chance=0) is None


@pytest.mark.parametrize("text", ["1 2 x", "-1", "nan", "inf", "1e9", " ".join(["1"] * 101)])
def test_a_schedule_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"wait|float"):
        Schedule.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (" 5 ", 5),
        ("Fri, 01 Jan 2027 00:01:00 GMT", 60),
        ("Fri, 01 Jan 2027 00:00:00 -0000", 0),
        ("Thu, 31 Dec 2026 00:00:00 GMT", 0),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
        (None, None),
        ("9" * 30, 999999999),
    ],
)
def test_both_forms_of_retry_after_are_read(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, now_s=1798761600) == seconds


@given(st.text(max_size=40))
def test_no_retry_after_is_a_crash(text: str) -> None:
    retry_after_s(text, now_s=0)


@given(st.integers(-5, 40 * DAY_MS))
def test_a_partition_is_never_left_after_its_records_are_due(wait_ms: int) -> None:
    partition = partition_of(wait_ms)
    assert 0 <= partition < PARTITIONS
    ready = ready_ms(partition, now_ms=0, due_ms=wait_ms)
    assert ready <= wait_ms
    assert wait_ms < 1000 or ready >= wait_ms / 2 or ready >= 65_536_000 // 2


@given(st.integers(0, 7 * DAY_MS))
def test_a_wait_takes_few_moves(wait_ms: int) -> None:
    now_ms, moves = 0, 0
    while now_ms < wait_ms:
        now_ms = ready_ms(partition_of(wait_ms - now_ms), now_ms=now_ms, due_ms=wait_ms)
        moves += 1
    assert now_ms == wait_ms or wait_ms == 0
    assert moves <= PARTITIONS + wait_ms // 65_536_000


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 100_000)), max_size=40))
def test_within_a_partition_the_first_is_always_the_next_to_be_ready(sent: list[tuple[int, int]]) -> None:
    """Records come at any time with any wait; replayed through all their moves, each partition stays in order."""
    last_ready: dict[int, int] = {}
    arrived: dict[int, int] = {}
    events = [(at_ms, number, at_ms + wait_ms) for number, (at_ms, wait_ms) in enumerate(sent)]
    heapq.heapify(events)
    while events:
        now_ms, number, due_ms = heapq.heappop(events)
        if now_ms >= due_ms:
            arrived[number] = now_ms
            continue
        partition = partition_of(due_ms - now_ms)
        ready = ready_ms(partition, now_ms=now_ms, due_ms=due_ms)
        if partition:
            assert ready >= last_ready.get(partition, 0)
            last_ready[partition] = ready
        heapq.heappush(events, (ready, number, due_ms))
    assert arrived == {number: at_ms + wait_ms for number, (at_ms, wait_ms) in enumerate(sent)}
