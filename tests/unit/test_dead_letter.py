"""DeadLetter: what is written is bounded, what is read back is the same, and what is sent again is the request."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import error_value
from schemas.progress import Progress
from schemas.record import Envelope, Origin, ReplyTo, decode_envelope, request_headers
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.dead_letter import (
    STAGES,
    DeadLetter,
    dead_letter_headers,
    read_dead_letter,
    read_replayed_note,
    replayed_note,
    replayed_request,
)
from workers.delivery import Delivery, Partition

PLACE = Origin("t.dead.m", 1, 77)
ADDED_BYTES = 16 * 1024


def delivery_of(headers: list[tuple[str, bytes]], *, offset: int = 5, value: bytes | None = b"{}") -> Delivery:
    partition = Partition("t.infer.m", 1, AckTracker(Progress(0, 0)), BrokerClock())
    return Delivery(partition, Origin("t.infer.m", 1, offset), 1000, headers, value)


def buried(delivery: Delivery, error: InferenceError, *, attempt: int = 1, claim: str = "") -> DeadLetter:
    headers = dead_letter_headers(delivery, error, stage="infer", attempt=attempt, now_ms=2000)
    if claim:
        headers.append(("tidegate-dead-claim", claim.encode()))
    return read_dead_letter(headers, None if claim else delivery.value, PLACE)


FAILED = InferenceError(ErrorCode.MODEL_FAILED, "it failed")
texts = st.text(st.characters(), max_size=60)  # half surrogates among them
names = st.sampled_from(
    ["ce_id", "traceparent", "x-y", "tidegate-priority", "tidegate-dead-code", "tidegate-dead-note"]
)


@given(
    headers=st.lists(st.tuples(names, st.binary(max_size=20)), max_size=6),
    message=texts | st.just("m" * 5000),
    cause=st.none() | texts.map(ValueError) | st.just(ValueError("\u200b" * 9000)),
    code=st.sampled_from(ErrorCode),
    stage=st.sampled_from(STAGES),
    attempt=st.integers(1, 10**17),
    times=st.tuples(st.integers(0, 10**15), st.integers(0, 10**15)),
    value=st.none() | st.binary(max_size=10),
)
def test_a_dead_letter_is_read_back_as_it_was_written(
    headers: list[tuple[str, bytes]],
    message: str,
    cause: ValueError | None,
    code: ErrorCode,
    stage: str,
    attempt: int,
    times: tuple[int, int],
    value: bytes | None,
) -> None:
    delivery = delivery_of(headers, value=value)
    delivery.appended_ms = times[0]
    error = InferenceError(code, message)
    error.__cause__ = cause
    written = dead_letter_headers(delivery, error, stage=stage, attempt=attempt, now_ms=times[1])
    own = [(name, content) for name, content in headers if not name.startswith("tidegate-dead-")]
    added = sum(len(name) + len(content) for name, content in written[len(own) :])
    assert added <= ADDED_BYTES
    letter = read_dead_letter(written, value, PLACE)
    assert letter.headers == tuple(own)
    assert (letter.code, letter.stage, letter.attempts, letter.value) == (code, stage, attempt, value)
    assert (letter.origin, letter.place) == (delivery.origin, PLACE)
    assert (letter.arrived_ms, letter.time_ms) == times
    assert letter.message == error.message
    assert bool(letter.cause) == (cause is not None)
    assert decode_envelope([("ce_id", letter.id.encode())], PLACE)[0].id == letter.id


@given(
    st.lists(
        st.tuples(
            st.sampled_from([f"tidegate-dead-{name}" for name in ("origin", "code", "attempts", "time-ms", "stage")]),
            st.binary(max_size=30) | st.integers().map(lambda number: b"%d" % number) | st.none(),
        )
    ),
    st.none() | st.binary(max_size=10),
)
def test_what_is_no_dead_letter_is_refused_as_such(headers: list[tuple[str, bytes]], value: bytes | None) -> None:
    # Anything else that is raised fails this.
    with suppress(InferenceError):
        assert read_dead_letter(headers, value, PLACE).attempts >= 1


@pytest.mark.parametrize("missing", ["origin", "code", "message", "cause", "stage", "attempts", "time-ms"])
def test_a_record_that_lacks_a_part_is_no_dead_letter(missing: str) -> None:
    headers = dead_letter_headers(delivery_of([]), FAILED, stage="infer", attempt=1, now_ms=1)
    with pytest.raises(InferenceError) as caught:
        read_dead_letter([header for header in headers if header[0] != f"tidegate-dead-{missing}"], b"", PLACE)
    assert caught.value.code is ErrorCode.UNDECODABLE_RECORD
    assert str(PLACE) in caught.value.message


class RawError(Exception):
    def __repr__(self) -> str:
        return "\udcff"


def test_half_a_surrogate_in_an_error_does_not_keep_its_letter_from_being_written() -> None:
    error = InferenceError(ErrorCode.MODEL_FAILED, "no file \udcff.bin", value="\ud800", remedy="\udfff")
    error.__cause__ = RawError()
    letter = buried(delivery_of([]), error)
    assert (letter.message, letter.cause) == ("no file ?.bin", "?")
    assert b"no file" in error_value(error)


def test_a_replay_keeps_the_request_and_drops_what_its_caller_was_waiting_for() -> None:
    envelope = Envelope(
        "id-1",
        source="/gateway/g",
        reply_to=ReplyTo("t.replies", 3),
        deadline=Deadline(1500),
        model_version="2",
        priority=4,
        attempt=2,
        traceparent="00-ab-cd-01",
        claim="claims/id-1",
        stored=True,
    )
    letter = buried(delivery_of(request_headers(envelope, 17, now_ms=900)), FAILED, attempt=3)
    value, headers = replayed_request(letter)
    assert value == b"{}"
    assert not [name for name, _ in headers if name.startswith("tidegate-dead-")]
    assert len({name for name, _ in headers}) == len(headers)
    again, header_length = decode_envelope(headers, Origin("t.infer.m", 1, 99))
    assert header_length == 17
    assert again == Envelope(
        "id-1",
        source="/gateway/g",
        model_version="2",
        priority=4,
        attempt=4,
        traceparent="00-ab-cd-01",
        claim="claims/id-1",
    )
    told = dict(headers)
    assert told["tidegate-replay-of"] == b"t.infer.m/1/5"
    assert told["content-type"] == b"application/octet-stream"
    assert told["ce_time"] == dict(letter.headers)["ce_time"]
    without_version, _ = decode_envelope(replayed_request(letter, any_version=True)[1], PLACE)
    assert without_version.model_version == ""


@pytest.mark.parametrize("headers", [[], [("ce_id", b"\xff")]])
def test_a_request_without_an_id_keeps_the_one_it_was_answered_under(headers: list[tuple[str, bytes]]) -> None:
    letter = buried(delivery_of(headers), FAILED)
    _, again = replayed_request(letter)
    assert decode_envelope(again, Origin("t.infer.m", 0, 1))[0].id == letter.id == "t.infer.m/1/5"


def test_a_request_that_fails_again_counts_on_and_remembers_its_first_place() -> None:
    first = buried(delivery_of([("ce_id", b"id-1")]), FAILED)
    _, headers = replayed_request(first)
    envelope, _ = decode_envelope(headers, PLACE)
    second = buried(delivery_of(headers, offset=50), FAILED, attempt=envelope.attempt)
    assert (second.id, second.attempts, second.origin.offset) == ("id-1", 2, 50)
    _, headers = replayed_request(second)
    assert [content for name, content in headers if name == "tidegate-replay-of"] == [b"t.infer.m/1/5"]
    assert [content for name, content in headers if name == "tidegate-attempt"] == [b"3"]


def test_a_value_that_was_put_aside_is_referred_to() -> None:
    letter = buried(delivery_of([("inference-header-content-length", b"7")]), FAILED, claim="claims/dead/x")
    value, headers = replayed_request(letter)
    envelope, header_length = decode_envelope(headers, PLACE)
    assert (value, envelope.claim, header_length) == (b"", "claims/dead/x", 7)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_a_note_tells_of_exactly_what_was_replayed(offsets: set[int]) -> None:
    assert set(read_replayed_note(replayed_note(offsets)) or ()) == offsets


@pytest.mark.parametrize("text", [b"", b"5", b"5-5", b"9-3", b"a-b", b"0-99999999999", b"1-2-3", b"9" * 30 + b"-1"])
def test_a_note_that_cannot_be_read_tells_of_nothing(text: bytes) -> None:
    assert read_replayed_note([("tidegate-dead-replayed", text)]) == ()
    assert read_replayed_note([("ce_id", text)]) is None
