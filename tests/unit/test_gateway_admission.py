"""Admission: who is let in, when the others may come again, and that nothing is counted that was refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Admission, AdmissionLimits, Limits, Queue
from gateway.byte_budget import ByteBudget
from gateway.problem import problem_response, retry_after
from gateway.tenant_queues import TenantQueues
from gateway.token_bucket import TokenBucket
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.progress import Progress


def refusal(act: Callable[[], None]) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        act()
    assert caught.value.code is ErrorCode.OVERLOADED
    assert caught.value.remedy
    return caught.value


def refused(admission: Admission, model: str = "m", tenant: str = "", *, now_s: float = 0.0) -> InferenceError:
    before = admission.in_flight
    error = refusal(lambda: admission.enter(model, tenant, now_s=now_s))
    assert admission.in_flight == before
    return error


def test_the_total_is_bounded_and_a_place_is_free_again_after_leaving() -> None:
    admission = Admission(AdmissionLimits(2))
    admission.enter("m", "", now_s=0)
    admission.enter("n", "t", now_s=0)
    assert "2 requests are in flight" in refused(admission).message
    admission.leave("m", "")
    admission.enter("m", "", now_s=0)


def test_a_model_and_a_tenant_have_limits_of_their_own() -> None:
    limits = AdmissionLimits(
        100, Limits(in_flight=1), Limits(in_flight=2), {"big": Limits(in_flight=3)}, {"vip": Limits()}
    )
    admission = Admission(limits)
    admission.enter("m", "a", now_s=0)
    assert "'m'" in refused(admission, "m", "b").message
    admission.enter("n", "a", now_s=0)
    assert "'a'" in refused(admission, "big", "a").message
    for _ in range(3):
        admission.enter("big", "vip", now_s=0)
    assert "3 requests to model 'big'" in refused(admission, "big", "vip").message
    admission.leave("m", "a")
    admission.enter("m", "vip", now_s=0)


def test_names_that_left_are_forgotten() -> None:
    admission = Admission(AdmissionLimits(10, Limits(in_flight=5)))
    for number in range(100):
        admission.enter(f"m{number}", f"t{number}", now_s=0)
        admission.leave(f"m{number}", f"t{number}")
    assert not admission._by_model
    assert not admission._by_tenant


def test_a_full_queue_says_when_it_will_be_short_enough() -> None:
    queue: list[Queue | None] = [None]
    admission = Admission(AdmissionLimits(100, Limits(backlog=1000)), queue_of=lambda model: queue[0])
    admission.enter("m", "", now_s=0)  # unknown: nobody is refused on doubt
    queue[0] = Queue(999, 50.0)
    admission.enter("m", "", now_s=0)
    queue[0] = Queue(1500, 50.0)
    error = refused(admission)
    assert "1500 requests wait" in error.message
    assert error.retry_after_s == pytest.approx(501 / 50)
    assert dict(problem_response(error)[1])[b"retry-after"] == b"11"
    queue[0] = Queue(1500)
    assert retry_after(refused(admission)) == 1


def test_a_tenants_queue_is_limited_over_all_models() -> None:
    limits = AdmissionLimits(100, tenant=Limits(backlog=3), tenants={"free": Limits()})
    queued = TenantQueues(lambda tenant: limits.of_tenant(tenant).backlog)
    asked: list[str] = []

    def queue_of(model: str) -> Queue:
        asked.append(model)
        return Queue(30, 10.0)

    admission = Admission(limits, queue_of=queue_of, queued=queued)

    def take(name: str, tenant: str, offset: int) -> None:
        announced = ModelAnnouncement(ModelMetadata(name, ("1",), "p", 8, (), ()), "pool", f"t.infer.{name}", 7, 1)
        admission.enter(name, tenant, now_s=0)
        queued.put(tenant, announced, (0, offset, 0))
        admission.leave(name, tenant)

    for offset in range(2):
        take("m", "a", offset)
    assert asked == ["m", "m"]  # the counts are kept true from the first on
    refusal(lambda: admission.enter("m", "a", now_s=0, count=2))
    take("n", "a", 0)
    error = refused(admission, "o", "a")
    assert "3 jobs of tenant 'a' wait or run, of 3 that may" in error.message
    assert error.retry_after_s == pytest.approx(1.0)  # one of its three in a queue of three seconds
    assert "more than the 3" in refusal(lambda: admission.enter("m", "b", now_s=0, count=4)).message
    for offset in range(9):
        take("m", "free", offset)
    queued.settle("m", 7, [Progress(1, 2)])
    take("m", "a", 2)


def test_a_full_gateway_says_how_long_the_queue_is() -> None:
    admission = Admission(AdmissionLimits(1), queue_of=lambda model: Queue(90, 20.0, age_s=1.5))
    admission.enter("m", "", now_s=0)
    assert refused(admission).retry_after_s == pytest.approx(3.0)
    unknown = Admission(AdmissionLimits(1))
    unknown.enter("m", "", now_s=0)
    assert retry_after(refused(unknown)) == 1


@pytest.mark.parametrize(
    ("queue", "budget_ms", "is_refused"),
    [
        (None, 1, False),
        (Queue(1_000_000), 1, False),  # the rate is unknown
        (Queue(1_000_000, 0.0), 1, False),
        (Queue(0, 10.0), 0, False),
        (Queue(100, 10.0), 5_000, True),  # ten seconds of work
        (Queue(100, 10.0), 7_000, False),  # within the doubt
        (Queue(100, 10.0, age_s=8.0), 5_000, False),  # and by now it is shorter
        (Queue(100, 10.0), 60_000, False),
    ],
)
def test_what_cannot_be_in_time_is_refused_and_never_on_doubt(
    queue: Queue | None, budget_ms: int, is_refused: bool
) -> None:
    admission = Admission(AdmissionLimits(10), queue_of=lambda model: queue)
    if not is_refused:
        admission.check_time("m", budget_ms, "deadline")
        return
    error = refusal(lambda: admission.check_time("m", budget_ms, "deadline"))
    assert "deadline of 5000 ms" in error.message
    assert "100 requests wait" in error.message
    assert "10.0 s at 10.0 requests/s" in error.message
    assert error.retry_after_s == pytest.approx(5.0)


def test_a_tenant_sends_its_rate_and_is_told_when_to_go_on() -> None:
    limits = AdmissionLimits(10_000, tenant=Limits(rate_rps=2.0, burst=3), tenants={"free": Limits()})
    admission = Admission(limits)
    for _ in range(3):
        admission.enter("m", "a", now_s=10.0)
    error = refused(admission, tenant="a", now_s=10.1)
    assert "2 requests/s" in error.message
    assert error.retry_after_s == pytest.approx(0.4)
    assert retry_after(error) == 1
    admission.enter("m", "b", now_s=10.1)  # another tenant
    admission.enter("m", "free", now_s=10.1)
    admission.enter("m", "a", now_s=10.5)
    refused(admission, tenant="a", now_s=10.5)


def test_who_was_refused_for_another_reason_has_spent_no_token() -> None:
    limits = AdmissionLimits(10, Limits(in_flight=1), Limits(rate_rps=1.0, burst=2))
    admission = Admission(limits)
    admission.enter("m", "a", now_s=0)
    refused(admission, "m", "a")
    admission.enter("n", "a", now_s=0)
    assert "requests/s" in refused(admission, "o", "a").message


def test_buckets_of_tenants_who_rest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admission._MAX_BUCKETS", 4)
    admission = Admission(AdmissionLimits(10_000, tenant=Limits(rate_rps=1.0)))
    for number in range(50):
        admission.enter("m", f"t{number}", now_s=float(10 * number))
    assert len(admission._buckets) <= 4


@given(
    st.floats(0.1, 1000),
    st.floats(0, 100),
    st.lists(st.floats(0, 10), min_size=1, max_size=60),
)
def test_a_bucket_never_gives_more_than_its_rate_and_burst(rate: float, burst: float, gaps_s: list[float]) -> None:
    now_s, taken = 0.0, 0
    bucket = TokenBucket(rate=rate, burst=burst, now_s=now_s)
    for gap_s in gaps_s:
        now_s += gap_s
        wait_s = bucket.take(now_s)
        assert wait_s >= 0
        taken += wait_s == 0
        assert taken <= max(1.0, burst) + rate * now_s + 1e-6
        if wait_s:
            assert bucket.take(now_s + wait_s + 1e-6) == 0  # what it says is true
            taken, now_s = taken + 1, now_s + wait_s + 1e-6


def test_a_clock_that_goes_back_fills_nothing() -> None:
    bucket = TokenBucket(rate=1.0, burst=1, now_s=100.0)
    assert bucket.take(100.0) == 0
    assert bucket.take(50.0) > 0
    assert bucket.take(100.5) > 0


@given(
    st.lists(
        st.tuples(st.sampled_from("mno"), st.sampled_from("ab"), st.booleans()),
        max_size=80,
    )
)
def test_counts_are_what_is_inside(moves: list[tuple[str, str, bool]]) -> None:
    admission = Admission(AdmissionLimits(7, Limits(in_flight=3), Limits(in_flight=5)))
    inside: list[tuple[str, str]] = []
    for model, tenant, enters in moves:
        if enters:
            fits = (
                len(inside) < 7
                and sum(each[0] == model for each in inside) < 3
                and sum(each[1] == tenant for each in inside) < 5
            )
            try:
                admission.enter(model, tenant, now_s=0)
                assert fits
                inside.append((model, tenant))
            except InferenceError:
                assert not fits
        elif inside:
            admission.leave(*inside.pop(0))
        assert admission.in_flight == len(inside)


def test_bytes_are_bounded_and_come_back() -> None:
    budget = ByteBudget(100)
    one, two = budget.hold(), budget.hold()
    one.grow_to(60)
    one.grow_to(50)  # what was promised is kept
    two.grow_to(40)
    assert "100 bytes" in refusal(lambda: two.grow_to(41)).message
    one.release()
    one.release()
    two.grow_to(100)
    budget.add(10)  # an answer that somebody has yet to read
    assert budget.used_bytes == 110
    two.release()
    assert budget.used_bytes == 10
    with pytest.raises(InferenceError) as caught:
        one.grow_to(101)
    assert caught.value.code is ErrorCode.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(("seconds", "header"), [(0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (59.5, 60)])
def test_retry_after_is_a_whole_number_of_seconds_and_never_too_early(seconds: float, header: int) -> None:
    assert retry_after(InferenceError(ErrorCode.OVERLOADED, "x", retry_after_s=seconds)) == header


def test_no_time_is_told_where_coming_again_is_of_no_use() -> None:
    assert retry_after(InferenceError(ErrorCode.INVALID_REQUEST, "x")) is None


def test_requests_that_come_together_all_count_to_the_rate() -> None:
    admission = Admission(AdmissionLimits(100, tenant=Limits(rate_rps=10, burst=5)))
    admission.enter("m", "a", now_s=0, count=25)
    error = refusal(lambda: admission.enter("m", "a", now_s=1.0))
    assert error.retry_after_s == pytest.approx(1.1)  # 20 tokens of debt, filled by half, and one to take
    admission.enter("m", "a", now_s=2.2)
