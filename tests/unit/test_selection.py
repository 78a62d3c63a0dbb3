"""Selection: which dead letters somebody means."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.record import Origin
from workers.dead_letter import DeadLetter
from workers.selection import Selection, kind_of, moment_ms, select

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def letter(**fields: Any) -> DeadLetter:
    told = {
        "code": ErrorCode.MODEL_FAILED,
        "message": "model 'm' failed: ValueError('Out of memory at 0x7f')",
        "cause": "ValueError('Out of memory')",
        "stage": "infer",
        "time_ms": NOW_MS - HOUR_MS,
        **fields,
    }
    place = Origin("t.dead.m", 0, 1)
    return DeadLetter(
        place=place, origin=place, id="i", attempts=1, arrived_ms=0, claim="", headers=(), value=b"", **told
    )


def selection(**asked: Any) -> Selection:
    return select(**{"codes": [], "stages": [], "cause": "", "since": "", "until": "", "now_ms": NOW_MS, **asked})


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({}, True),
        ({"codes": ["model_failed"]}, True),
        ({"codes": ["model_load_failed", "unavailable"]}, False),
        ({"stages": ["infer", "load"]}, True),
        ({"stages": ["decode"]}, False),
        ({"cause": "OUT OF MEMORY"}, True),
        ({"cause": "model 'm' failed"}, True),
        ({"cause": "disk"}, False),
        ({"since": "1h"}, True),
        ({"since": "59m"}, False),
        ({"until": "59m"}, True),
        ({"until": "1h"}, False),
        ({"since": "2h", "until": "30m", "codes": ["model_failed"], "cause": "memory"}, True),
        ({"since": "2h", "until": "30m", "codes": ["model_failed"], "cause": "disk"}, False),
    ],
)
def test_all_that_was_asked_must_hold(asked: dict[str, Any], taken: bool) -> None:
    assert selection(**asked).takes(letter()) is taken


def test_the_message_and_the_cause_are_both_looked_into() -> None:
    assert selection(cause="here").takes(letter(message="here", cause=""))
    assert selection(cause="here").takes(letter(message="", cause="here"))
    assert not selection(cause="xy").takes(letter(message="x", cause="y"))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", NOW_MS - 90_000),
        (" 15m ", NOW_MS - 900_000),
        ("2h", NOW_MS - 2 * HOUR_MS),
        ("7d", NOW_MS - 168 * HOUR_MS),
        ("1w", NOW_MS - 168 * HOUR_MS),
        ("1970-01-01T00:01", 60_000),
        ("1970-01-01T01:01+01:00", 60_000),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-02", 24 * HOUR_MS),
    ],
)
def test_a_moment_is_so_long_ago_or_a_time(text: str, ms: int) -> None:
    assert moment_ms(text, field="since", now_ms=NOW_MS) == ms


@pytest.mark.parametrize("text", ["soon", "2 h", "-2h", "9999999h", "2026-13-01", "h", "12:00"])
def test_what_is_no_moment_names_the_field_and_how_to_write_one(text: str) -> None:
    with pytest.raises(InferenceError) as caught:
        selection(since=text)
    error = caught.value
    assert (error.code, error.field, error.value) == (ErrorCode.INVALID_REQUEST, "since", text)
    assert "2h" in error.remedy


@pytest.mark.parametrize(
    ("asked", "field", "there_is"),
    [({"codes": ["model_faild"]}, "code", "model_failed"), ({"stages": ["inference"]}, "stage", "infer")],
)
def test_a_code_or_stage_that_is_not_names_those_there_are(asked: dict[str, Any], field: str, there_is: str) -> None:
    with pytest.raises(InferenceError) as caught:
        selection(**asked)
    assert caught.value.field == field
    assert there_is in caught.value.remedy


def test_letters_whose_messages_differ_in_numbers_are_of_one_kind() -> None:
    one, two = letter(message="the record at t/0/17 is none"), letter(message="the record at t/3/4 is none")
    assert kind_of(one) == kind_of(two)
    assert kind_of(one) != kind_of(letter(message="the record at t/0/17 is none", stage="decode"))
    assert kind_of(one) != kind_of(letter(message="another"))
