"""Retry and Backoff: bounded attempts, growing pauses, nothing after a deadline."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.deadline import Deadline
from workers.retry import Backoff, Retry

jitters = st.floats(0, 1, exclude_max=True)


def test_pauses_double_up_to_the_last_and_then_there_are_no_more() -> None:
    retry = Retry(attempts=6, first_ms=100, last_ms=1000)
    assert [retry.delay_ms(failed, 0.999999) for failed in range(1, 7)] == [99, 199, 399, 799, 999, None]
    assert [retry.delay_ms(failed, 0) for failed in range(1, 7)] == [50, 100, 200, 400, 500, None]


def test_one_attempt_means_no_other() -> None:
    assert Retry(attempts=1).delay_ms(1, 0.5) is None


@given(st.integers(1, 10), st.integers(1, 10_000), st.integers(1, 100_000), st.integers(1, 10**6), jitters)
def test_a_pause_is_positive_bounded_and_given_only_below_the_limit(
    attempts: int, first_ms: int, last_ms: int, failed: int, jitter: float
) -> None:
    retry = Retry(attempts, first_ms, last_ms)
    delay_ms = retry.delay_ms(failed, jitter)
    assert (delay_ms is None) == (failed >= attempts)
    assert 0 <= retry.pause_ms(failed, jitter) <= last_ms
    assert retry.pause_ms(failed, jitter) >= min(first_ms, last_ms) // 2
    assert retry.pause_ms(failed, jitter) <= retry.pause_ms(failed + 1, jitter)


def test_nothing_is_tried_again_after_its_deadline() -> None:
    retry = Retry(attempts=3, first_ms=100, last_ms=100)
    assert retry.delay_within_ms(1, 0, deadline=Deadline(1051), now_ms=1000) == 50
    assert retry.delay_within_ms(1, 0, deadline=Deadline(1050), now_ms=1000) is None
    assert retry.delay_within_ms(1, 0, deadline=None, now_ms=1000) == 50
    assert retry.delay_within_ms(3, 0, deadline=None, now_ms=1000) is None


def test_a_model_that_fails_to_load_is_tried_less_and_less_and_for_ever() -> None:
    backoff = Backoff(Retry(attempts=3, first_ms=200, last_ms=1000))
    assert backoff.is_due(0)
    now_us, pauses, spent = 0, [], []
    for _ in range(5):
        backoff.note_failure(now_us, 0.5)
        assert not backoff.is_due(backoff.next_try_us - 1)
        assert backoff.is_due(backoff.next_try_us)
        pauses.append((backoff.next_try_us - now_us) // 1000)
        spent.append(backoff.is_spent)
        now_us = backoff.next_try_us
    assert pauses == [150, 300, 600, 750, 750]
    assert spent == [False, False, True, True, True]


def test_a_success_forgets_all_failures() -> None:
    backoff = Backoff(Retry(attempts=2, first_ms=200, last_ms=1000))
    backoff.note_failure(0, 0)
    backoff.note_failure(0, 0)
    backoff.note_success()
    assert (backoff.is_due(0), backoff.is_spent, backoff.failures) == (True, False, 0)
    backoff.note_failure(0, 0)
    assert backoff.next_try_us == 100_000
