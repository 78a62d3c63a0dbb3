"""What of a webhook is a repeat, how endpoints are spared, and how far a partition is done. No I/O."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.offset_tracker import OffsetTracker
from gateway.webhook_delivery import WebhookDelivery, decode_delivery, encode_delivery
from gateway.webhook_endpoints import Admission, WebhookEndpoints
from gateway.webhook_redelivery import parse_age_s
from gateway.webhook_states import WebhookStage, WebhookState
from schemas.errors import InferenceError
from schemas.record import Origin

DELIVERY = WebhookDelivery(Origin("t.infer.m", 3, 17), 7, "https://example.com/", 1000)
ENDPOINT = ("", "https://example.com")


def delivery(generation: int, failures: int) -> WebhookDelivery:
    return msgspec.structs.replace(DELIVERY, generation=generation, failures=failures)


@pytest.mark.parametrize(
    ("stage", "state", "record", "repeat"),
    [
        (WebhookStage.PENDING, (0, 1), (0, 1), False),  # the attempt that the state announces
        (WebhookStage.PENDING, (0, 1), (0, 0), True),  # read again after a crash: its retry is on its way
        (WebhookStage.PENDING, (0, 1), (0, 2), False),  # the state was not written before the crash
        (WebhookStage.DELIVERED, (0, 1), (0, 1), True),
        (WebhookStage.FAILED, (0, 1), (0, 1), True),
        (WebhookStage.DELIVERED, (0, 1), (1, 0), False),  # asked for again
        (WebhookStage.FAILED, (0, 9), (1, 0), False),
        (WebhookStage.PENDING, (1, 0), (0, 5), True),  # of before that
        (WebhookStage.DELIVERED, (2, 0), (1, 5), True),
    ],
)
def test_a_repeat_is_told_from_the_next_attempt(
    stage: WebhookStage, state: tuple[int, int], record: tuple[int, int], repeat: bool
) -> None:
    kept = WebhookState(stage, generation=state[0], failures=state[1])
    assert kept.supersedes(delivery(*record)) is repeat


@given(st.integers(0, 3), st.integers(0, 12), st.text(max_size=50), st.integers(0, 2**50))
def test_a_delivery_survives_its_record(generation: int, failures: int, error: str, due_ms: int) -> None:
    sent = msgspec.structs.replace(delivery(generation, failures), error=error, due_ms=due_ms, tenant="acme")
    assert decode_delivery(encode_delivery(sent)) == sent


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[1]", b"\xff"])
def test_a_record_that_is_no_delivery_is_told_as_such(value: bytes | None) -> None:
    with pytest.raises(InferenceError):
        decode_delivery(value)


def endpoints(concurrency: int = 2) -> WebhookEndpoints:
    return WebhookEndpoints(concurrency=64, endpoint_concurrency=concurrency)


def test_an_endpoint_takes_only_so_many_at_a_time_and_another_is_not_held_up() -> None:
    known = endpoints()
    got = [known.admit(ENDPOINT, now_ms=0) for _ in range(9)]
    assert got == [Admission.GO] * 8 + [Admission.BUSY]
    assert known.admit(("other tenant", ENDPOINT[1]), now_ms=0) is Admission.GO
    known.end(ENDPOINT, ok=True, now_ms=0)
    assert known.admit(ENDPOINT, now_ms=0) is Admission.GO


def test_one_that_fails_is_asked_one_at_a_time() -> None:
    known = endpoints()
    assert known.admit(ENDPOINT, now_ms=0) is Admission.GO
    known.end(ENDPOINT, ok=False, now_ms=0)
    assert [known.admit(ENDPOINT, now_ms=0) for _ in range(2)] == [Admission.GO, Admission.BUSY]
    known.end(ENDPOINT, ok=True, now_ms=0)
    assert [known.admit(ENDPOINT, now_ms=0) for _ in range(2)] == [Admission.GO, Admission.GO]


def fail(known: WebhookEndpoints, *, now_ms: int) -> None:
    assert known.admit(ENDPOINT, now_ms=now_ms) is Admission.GO
    known.end(ENDPOINT, ok=False, now_ms=now_ms)


def test_one_that_keeps_failing_is_left_alone_longer_and_longer_and_then_tested_once() -> None:
    known, now_ms = endpoints(), 0
    for _ in range(5):
        fail(known, now_ms=now_ms)
    assert known.down(now_ms=now_ms) == 1
    for cool_down_ms in (10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000):
        assert known.admit(ENDPOINT, now_ms=now_ms + cool_down_ms - 1) is Admission.DOWN
        now_ms += cool_down_ms
        assert known.admit(ENDPOINT, now_ms=now_ms) is Admission.GO
        assert known.admit(ENDPOINT, now_ms=now_ms) is Admission.DOWN  # the test decides for all
        known.end(ENDPOINT, ok=False, now_ms=now_ms)
    now_ms += 300_000
    assert known.admit(ENDPOINT, now_ms=now_ms) is Admission.GO
    known.end(ENDPOINT, ok=True, now_ms=now_ms)
    assert [known.admit(ENDPOINT, now_ms=now_ms) for _ in range(8)] == [Admission.GO] * 8
    assert known.down(now_ms=now_ms) == 0


def test_who_was_asked_for_may_try_one_that_is_left_alone() -> None:
    known = endpoints()
    for _ in range(5):
        fail(known, now_ms=0)
    assert known.admit(ENDPOINT, now_ms=1) is Admission.DOWN
    assert known.admit(ENDPOINT, now_ms=1, probe=True) is Admission.GO
    assert known.admit(ENDPOINT, now_ms=1, probe=True) is Admission.DOWN
    assert not known.is_down(ENDPOINT, now_ms=1)  # for the one that tries


def test_those_that_waited_beside_the_failures_are_told() -> None:
    known = endpoints()
    for _ in range(8):
        known.admit(ENDPOINT, now_ms=0)
    for _ in range(5):
        known.end(ENDPOINT, ok=False, now_ms=0)
    assert known.is_down(ENDPOINT, now_ms=0)
    known.release(ENDPOINT)


@given(st.integers(1, 8), st.floats(1, 15_000), st.integers(2, 300))
def test_who_finds_an_endpoint_busy_comes_back_when_it_can_be_free(
    concurrency: int, took_ms: float, count: int
) -> None:
    known = endpoints(concurrency)
    for _ in range(60):  # until the mean is learned
        known.admit(ENDPOINT, now_ms=0)
        known.end(ENDPOINT, ok=True, now_ms=0, took_ms=took_ms)
    due = [known.reserve(ENDPOINT, now_ms=0) for _ in range(count)]
    assert due == sorted(due)
    assert due[0] >= 1000
    needed_ms = count * took_ms / concurrency
    assert due[-1] <= min(1000 + 1.5 * needed_ms + 10 * count, 3_600_000)
    assert due[-1] >= min(needed_ms, 3_600_000)


def test_endpoints_are_forgotten_but_not_those_under_way() -> None:
    known = endpoints()
    known.admit(ENDPOINT, now_ms=0)
    for number in range(10_100):
        assert known.admit(("", f"https://{number}.example.com"), now_ms=0) is Admission.GO
        known.release(("", f"https://{number}.example.com"))
    known.release(ENDPOINT)
    assert len(known._known) <= 10_002


@given(st.data())
def test_no_offset_is_passed_before_it_has_ended(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 100))
    offsets = list(itertools.accumulate(data.draw(st.lists(st.integers(1, 3), max_size=20)), initial=first))
    tracker, open_ = OffsetTracker(first), set[int]()
    taken = 0
    while taken < len(offsets) or open_:
        if taken < len(offsets) and (not open_ or data.draw(st.booleans())):
            tracker.begin(offsets[taken])
            open_.add(offsets[taken])
            taken += 1
        else:
            ended = data.draw(st.sampled_from(sorted(open_)))
            tracker.end(ended)
            open_.discard(ended)
        assert all(tracker.position <= offset for offset in open_)
        assert tracker.position == min(open_, default=offsets[taken - 1] + 1)
    assert tracker.position == offsets[-1] + 1


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5d", 129600), ("0s", 0)])
def test_ages_are_read(text: str, seconds: float) -> None:
    assert parse_age_s(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2 h", "2w", "1e3s"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no age"):
        parse_age_s(text)
