"""The client's calls and their repetitions, played without any I/O: what is sent, when it pauses, what is raised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
import pytest

from tidegate.errors import (
    NoAnswerError,
    OverloadedError,
    TidegateError,
    UnavailableError,
    WaitTimeoutError,
    error_of,
    error_of_problem,
)
from tidegate.exchange import Clock, HttpCall, HttpReply, NoReply, Operation, Pause, Retries, exchange
from tidegate.operations import Operations
from tidegate.watching import Watch

T = TypeVar("T")

OK = HttpReply(200, {}, b"{}")
CALL = HttpCall("GET", "/v2")
UNSAFE = HttpCall("POST", "/v2/models/m/infer", repeatable=False)


@dataclass
class Play:
    """Plays an operation: replies come in order, a pause or a call makes the time go on."""

    replies: Sequence[HttpReply | NoReply]
    call_s: float = 0.0
    now_s: float = 0.0
    calls: list[HttpCall] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now_s, lambda: 0.0)

    def run(self, operation: Operation[T]) -> T:
        replies = iter(self.replies)
        answer: HttpReply | NoReply | None = None
        try:
            while True:
                step = operation.send(answer)
                if isinstance(step, Pause):
                    self.pauses_s.append(step.seconds)
                    self.now_s += step.seconds
                    answer = None
                else:
                    self.calls.append(step)
                    self.now_s += self.call_s
                    answer = next(replies)
        except StopIteration as end:
            value: T = end.value
            return value


def refusal(status: int, code: str, *, retryable: bool, **headers: str) -> HttpReply:
    body = json.dumps({"code": code, "detail": f"it is {code}", "retryable": retryable, "status": status}).encode()
    return HttpReply(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


OVERLOADED = refusal(429, "overloaded", retryable=True, retry_after="3")
UNAVAILABLE = refusal(503, "unavailable", retryable=True)
LOST = NoReply(httpx.ReadError("gone"), sent=True)
NOT_CONNECTED = NoReply(httpx.ConnectError("refused"), sent=False)


def test_retry_after_is_obeyed_and_else_the_pause_doubles_up_to_a_bound() -> None:
    play = Play([OVERLOADED, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, OK])
    assert play.run(exchange(CALL, Retries(5, 0.2, 0.5), play.clock)) is OK
    assert play.pauses_s == [3.0, 0.2, 0.25, 0.25]
    assert play.calls == [CALL] * 5


def test_the_last_attempt_raises_what_the_gateway_answered() -> None:
    play = Play([OVERLOADED] * 2)
    with pytest.raises(OverloadedError) as raised:
        play.run(exchange(CALL, Retries(attempts=2), play.clock))
    assert (raised.value.code, raised.value.status, raised.value.retry_after_s) == ("overloaded", 429, 3.0)
    assert raised.value.retryable


@pytest.mark.parametrize(
    "reply",
    [
        refusal(400, "invalid_request", retryable=False),
        refusal(404, "model_not_found", retryable=False),
        refusal(500, "internal", retryable=False),
        refusal(503, "unavailable", retryable=False),
        refusal(500, "internal", retryable=True),
        HttpReply(502, {}, b"<html>Bad Gateway</html>"),
    ],
)
def test_what_a_repetition_does_not_help_is_raised_at_once(reply: HttpReply) -> None:
    play = Play([reply])
    with pytest.raises(TidegateError):
        play.run(exchange(CALL, Retries(), play.clock))
    assert play.pauses_s == []


def test_without_an_answer_only_what_is_safe_is_sent_again() -> None:
    play = Play([LOST, NOT_CONNECTED, OK])
    assert play.run(exchange(CALL, Retries(), play.clock)) is OK
    unsafe = Play([NOT_CONNECTED, LOST])  # what never left may leave again, what may have arrived must not
    with pytest.raises(NoAnswerError) as raised:
        unsafe.run(exchange(UNSAFE, Retries(), unsafe.clock))
    assert raised.value.__cause__ is LOST.error
    assert len(unsafe.calls) == 2


def test_no_repetition_begins_after_the_time_is_over() -> None:
    play = Play([UNAVAILABLE, OVERLOADED])
    with pytest.raises(OverloadedError):
        play.run(exchange(CALL, Retries(), play.clock, until_s=2.0))
    assert play.pauses_s == [0.1]


def test_a_proxy_s_page_is_an_error_that_can_be_read() -> None:
    error = error_of(503, {"retry-after": "7"}, b"<html>down</html>")
    assert (error.code, error.retryable, error.retry_after_s) == ("http_503", True, 7.0)
    assert "down" in str(error)
    assert error_of(429, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, b"").retry_after_s is None


def test_every_part_of_a_problem_is_kept() -> None:
    problem = {"code": "unavailable", "detail": "later", "field": "f", "value": "v", "remedy": "wait", "type": "/e"}
    error = error_of_problem(problem | {"request_id": "r", "status": 503})
    assert isinstance(error, UnavailableError)
    assert (error.field, error.value, error.remedy, error.request_id, error.type) == ("f", "v", "wait", "r", "/e")
    assert str(error) == "unavailable: later [f=v] - wait"
    assert type(error_of_problem({"code": "of_a_newer_gateway"})) is TidegateError


def job(state: str, id_: str = "j", status: int = 200) -> HttpReply:
    return HttpReply(status, {}, json.dumps({"id": id_, "model": "m", "state": state}).encode())


def operations(play: Play) -> Operations:
    return Operations(retries=Retries(), binary=True, clock=play.clock)


def test_waiting_is_one_long_poll_after_the_other() -> None:
    play = Play([job("queued"), job("running"), job("succeeded")], call_s=30.0)
    assert play.run(operations(play).wait("j", None)).ended
    assert [call.path for call in play.calls] == ["/v1/jobs/j?wait=30"] * 3
    assert play.pauses_s == []


def test_a_gateway_that_does_not_hold_the_answer_is_asked_at_a_growing_distance() -> None:
    play = Play([job("queued")] * 6 + [job("failed")], call_s=0.01)
    assert play.run(operations(play).wait("j", 60.0)).state == "failed"
    assert play.pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]


def test_a_wait_ends_in_time() -> None:
    play = Play([job("queued")] * 50, call_s=0.5)
    with pytest.raises(WaitTimeoutError) as raised:
        play.run(operations(play).wait("j", 3.0))
    assert raised.value.job_id == "j"
    assert 3.0 <= play.now_s <= 4.0
    assert isinstance(raised.value, TimeoutError)


def test_infer_that_is_handed_over_as_a_job_waits_for_it_and_asks_the_model_once() -> None:
    answer = HttpReply(200, {}, b'{"model_name":"m","outputs":[]}')
    play = Play([job("queued", status=202), job("queued", status=202), job("running"), job("succeeded"), answer], 1.0)
    result = play.run(operations(play).infer("m", {"x": "text"}, 20.0, {}))
    assert result.model == "m"
    assert [call.method for call in play.calls] == ["POST", "GET", "GET", "GET", "GET"]
    assert play.calls[0].headers["prefer"] == "wait=20"
    assert not play.calls[0].repeatable


def statuses(*pairs: tuple[str, str]) -> HttpReply:
    documents = [{"id": id_, "model": "m", "state": state} for id_, state in pairs]
    return HttpReply(200, {}, json.dumps({"jobs": documents}).encode())


def test_many_jobs_are_asked_about_a_hundred_at_a_time_and_none_is_starved() -> None:
    ids = [f"j{number}" for number in range(150)]
    first, second = ids[:100], ids[100:]
    play = Play(
        [
            statuses(*((id_, "running") for id_ in first)),
            statuses(*((id_, "succeeded" if id_ == "j149" else "queued") for id_ in second)),
        ]
    )
    watch = Watch(operations(play), ids, None)
    assert play.run(watch.next_ended()) == ["j149"]
    assert play.pauses_s == []  # only a whole round without news is followed by a pause
    assert len(watch.pending) == 149


def test_a_watch_ends_in_time_and_says_what_is_pending() -> None:
    play = Play([statuses(("a", "queued"), ("b", "queued"))] * 20)
    watch = Watch(operations(play), ["a", "b"], 1.0)
    assert play.run(watch.next_ended()) == []
    assert watch.pending == {"a", "b"}
    assert play.now_s == pytest.approx(1.0)


def test_who_asks_about_all_waits_for_the_first_to_end() -> None:
    play = Play([statuses(("a", "queued"), ("b", "succeeded"))])
    watch = Watch(operations(play), ["a", "b"], 9.5)
    assert play.run(watch.next_ended()) == ["b"]
    assert [call.path for call in play.calls] == ["/v1/jobs/status?wait=9"]


def test_without_a_call_about_many_each_is_asked_alone_and_a_lost_job_has_ended() -> None:
    gone = refusal(410, "result_expired", retryable=False)
    play = Play([refusal(404, "not_found", retryable=False), job("queued", "a"), gone])
    watch = Watch(operations(play), ["a", "b"], None)
    assert play.run(watch.next_ended()) == ["b"]
    assert watch.pending == {"a"}
