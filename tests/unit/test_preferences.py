"""Preferences, Accept headers and waits of the job API: what callers may write, and what is made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accept import best_of
from gateway.preferences import Preferences, parse_preferences
from gateway.waits import wait_of, waits_for_start
from schemas.errors import ErrorCode, InferenceError

JSON, OCTETS = "application/json", "application/octet-stream"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b'foo="a, respond-async, wait=3", wait=4', Preferences(False, 4)),  # a comma inside of quotes ends nothing
        (b'foo="a\\", wait=3", respond-async', Preferences(True)),
        (b'foo; a="x, wait=3"; b, respond-async', Preferences(True)),
        (b'respond-async=""', Preferences(True)),  # an empty value is none
        (b"respond-async=no", Preferences()),
        (b"wait = 5 ; x", Preferences(False, 5)),
        (b"respond-async;wait=3", Preferences(True)),  # a parameter, no preference
        (b"RESPOND-ASYNC , WAIT=2", Preferences(True, 2)),
        (b"wait=x, wait=9", Preferences()),  # the first of a name counts, also when it is of no use
        (b'"' * 5000, Preferences()),
        (b"respond-async," + b'x;"y,' * 20_000, Preferences(True)),
    ],
)
def test_prefer_is_read_by_the_letter(value: bytes, wanted: Preferences) -> None:
    assert parse_preferences([value]) == wanted


def test_a_wait_that_was_cut_is_told_as_it_is() -> None:
    assert Preferences(True, 500).applied(accepted=True, most_ms=30_000) == b"respond-async, wait=30"
    assert Preferences(False, 5).applied(accepted=False, most_ms=30_000) == b"wait=5"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (OCTETS, OCTETS),
        (f"{OCTETS}, {JSON}", JSON),  # equals: ours is the choice
        (f"{JSON};q=0.5, {OCTETS}", OCTETS),
        (f"{JSON};q=0.5, */*;q=0.6", OCTETS),
        (f"{JSON};q=0, */*", OCTETS),
        ("*/*;q=0", None),
        ("text/html", None),
        ("text/html, application/*;q=0.1", JSON),
        (f"{JSON}; charset=utf-8; q=0.9, {OCTETS};q=0.8", JSON),
        (f"{OCTETS};q=nonsense, text/html", None),
        ("APPLICATION/JSON", JSON),
        (f"{JSON};q=1e9", None),
    ],
)
def test_the_best_form_is_chosen_by_quality(accept: str, wanted: str | None) -> None:
    assert best_of((JSON, OCTETS), accept) == wanted


def test_the_most_specific_range_decides() -> None:
    assert best_of(("text/plain", JSON), "text/*;q=0.1, */*;q=0.9") == JSON
    assert best_of((JSON, "text/plain"), "text/plain;q=0.1, text/*;q=0.9, application/json;q=0.2") == JSON


@given(st.text(max_size=200))
def test_any_accept_header_is_read_without_an_error(accept: str) -> None:
    assert best_of((JSON, OCTETS), accept) in (JSON, OCTETS, None)


@pytest.mark.parametrize(("text", "wanted_s"), [("0", 0), ("30", 30), ("2.5", 2.5), ("1000", 60), ("00", 0)])
def test_a_wait_is_read_and_cut(text: str, wanted_s: float) -> None:
    assert wait_of({"wait": text}, 60) == wanted_s


@pytest.mark.parametrize("text", ["", "-1", "x", "1e3", "inf", "nan", "1.2.3", "٣", "9" * 13, ".", " 1"])
def test_a_wait_that_is_none_names_itself(text: str) -> None:
    with pytest.raises(InferenceError) as raised:
        wait_of({"wait": text}, 60)
    assert (raised.value.code, raised.value.field) == (ErrorCode.INVALID_REQUEST, "wait")


def test_what_is_waited_for_is_the_start_or_the_end() -> None:
    assert not waits_for_start({})
    assert not waits_for_start({"wait_for": "finished"})
    assert waits_for_start({"wait_for": "started"})
    with pytest.raises(InferenceError):
        waits_for_start({"wait_for": "luck"})
