"""The headers that say how a request is run: their meaning, who wins, and what is refused."""

from __future__ import annotations

import pytest

from gateway.call import Clocks, clocks_of, priority_of
from gateway.call_headers import has_call_headers, with_headers
from schemas.errors import ErrorCode, InferenceError


def test_headers_mean_what_the_parameters_mean() -> None:
    sent = {
        b"tidegate-timeout-ms": b"5000",
        b"tidegate-deadline-ms": b"9000",
        b"tidegate-execution-timeout-ms": b"700",
        b"tidegate-priority": b"2",
    }
    parameters = with_headers({"other": 1}, sent)
    assert clocks_of(parameters) == Clocks(5000, 9000, 700)
    assert priority_of(parameters) == 2
    assert parameters["other"] == 1


def test_a_header_wins_over_the_parameter() -> None:
    own = {"timeout": 1_000_000, "deadline_ms": 50, "priority": 4}
    parameters = with_headers(own, {b"tidegate-timeout-ms": b"30", b"tidegate-priority": b"0"})
    assert clocks_of(parameters) == Clocks(30, 50, 0)
    assert priority_of(parameters) == 0
    assert own["timeout"] == 1_000_000  # the request's own parameters stay as they came


def test_without_them_nothing_is_looked_at() -> None:
    own = {"deadline_ms": 1}
    assert not has_call_headers({b"host": b"x", b"prefer": b"wait=1"})
    assert with_headers(own, {b"host": b"x"}) is own


@pytest.mark.parametrize("name", [b"tidegate-timeout-ms", b"tidegate-priority", b"tidegate-webhook"])
def test_each_is_noticed(name: bytes) -> None:
    assert has_call_headers({b"host": b"x", name: b""})


@pytest.mark.parametrize("text", [b"", b"-1", b"1.5", b"x", b" 1", b"1" * 13, b"\xb2"])
def test_a_clock_that_is_no_number_names_the_header(text: bytes) -> None:
    with pytest.raises(InferenceError) as raised:
        with_headers({}, {b"tidegate-timeout-ms": text})
    assert (raised.value.code, raised.value.field) == (ErrorCode.INVALID_REQUEST, "tidegate-timeout-ms")


def test_the_largest_clock_is_still_a_number_to_the_parameters() -> None:
    parameters = with_headers({}, {b"tidegate-timeout-ms": b"9" * 12, b"tidegate-deadline-ms": b"9" * 15})
    assert clocks_of(parameters).start_ms == 999_999_999_999
    assert clocks_of(parameters).deadline_ms == 999_999_999_999_999
