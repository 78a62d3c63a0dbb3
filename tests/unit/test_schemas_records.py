"""Records: the envelope of requests, the headers of outcomes, stored outcomes and control records, and their faults."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.control import ModelAnnouncement, announcement_key, decode_announcement, encode_announcement
from schemas.deadline import Deadline
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, TensorSpec
from schemas.outcome import (
    JobState,
    Outcome,
    decode_outcome_record,
    decode_stored,
    encode_stored,
    error_value,
    outcome_headers,
    outcome_key,
    state_of,
)
from schemas.record import Envelope, Origin, ReplyTo, decode_envelope, decode_value, encode_request_record, rfc3339
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list

_NAMES = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=20)
_TIMES_MS = st.integers(0, 2**53)
_ORIGINS = st.builds(Origin, _NAMES, st.integers(0, 9999), st.integers(0, 2**53))
_ENVELOPES = st.builds(
    Envelope,
    st.text(max_size=20),
    source=st.text(max_size=10),
    reply_to=st.none() | st.builds(ReplyTo, _NAMES, st.integers(0, 9999)),
    deadline=st.none() | st.builds(Deadline, _TIMES_MS),
    model_version=st.text(max_size=5),
    priority=st.integers(-5, 5),
    attempt=st.integers(1, 9),
    traceparent=st.text(max_size=55),
    claim=st.text(max_size=20),
    stored=st.booleans(),
)
_ORIGIN = Origin("t.infer.m", 3, 42)
_REQUEST = InferenceRequest((tensor_from_list("x", "FP32", [1, 2], [1, 2]),))

_KNOWN = [name for name, _ in encode_request_record(_REQUEST, Envelope("i"), now_ms=0)[1]] + [
    "tidegate-reply-to", "tidegate-deadline-ms", "tidegate-priority", "tidegate-attempt", "tidegate-claim",
    "tidegate-model-version", "traceparent", "tidegate-state", "tidegate-origin", "tidegate-times-ms",
]  # fmt: skip
_WORDS = [b"succeeded", b"1,2,3", b"t/1/2", b"t/0", b"-1", b"9" * 400, b"NaN", b"\xff"]
# Kafka allows null in a header, and so do these.
_HEADERS = st.lists(
    st.tuples(
        st.sampled_from(_KNOWN) | st.text(max_size=5), st.none() | st.sampled_from(_WORDS) | st.binary(max_size=9)
    ),
    max_size=14,
)


@given(_ENVELOPES, _TIMES_MS.filter(lambda time_ms: time_ms < 2**47))
def test_a_request_record_round_trips(envelope: Envelope, now_ms: int) -> None:
    value, headers = encode_request_record(_REQUEST, envelope, now_ms=now_ms)
    assert type(headers) is list
    got, header_length = decode_envelope(headers, _ORIGIN)
    assert got == envelope
    assert decode_value(value, header_length, _ORIGIN) == _REQUEST


def test_request_headers_follow_cloudevents() -> None:
    headers = dict(encode_request_record(_REQUEST, Envelope("i", source="/a"), now_ms=1_700_000_000_123)[1])
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_time"] == b"2023-11-14T22:13:20.123+00:00" == rfc3339(1_700_000_000_123).encode()
    assert (headers["ce_id"], headers["ce_source"]) == (b"i", b"/a")
    assert headers["content-type"] == b"application/octet-stream"
    assert not [name for name in headers if name.startswith("tidegate-")]


def test_a_record_without_headers_has_its_place_as_id_and_no_reply_to() -> None:
    assert decode_envelope([], _ORIGIN) == (Envelope(str(_ORIGIN)), None)


def test_decoded_tensors_are_views_of_the_record() -> None:
    value, headers = encode_request_record(_REQUEST, Envelope("i"), now_ms=0)
    data = decode_value(value, decode_envelope(headers, _ORIGIN)[1], _ORIGIN).inputs[0].data
    assert isinstance(data, memoryview)
    assert data.obj is value


@given(_HEADERS, st.none() | st.binary(max_size=50))
def test_random_records_raise_only_the_undecodable_error(headers: list[tuple[str, bytes]], value: bytes | None) -> None:
    for decode in (
        lambda: decode_value(value, decode_envelope(headers, _ORIGIN)[1], _ORIGIN),
        lambda: decode_outcome_record(headers, value),
        lambda: decode_announcement(announcement_key("m"), value or b""),
    ):
        try:
            decode()
        except InferenceError as error:
            assert error.code is ErrorCode.UNDECODABLE_RECORD  # noqa: PT017 - both ends are right


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("inference-header-content-length", b"x"),
        ("tidegate-reply-to", b"replies"),
        ("tidegate-reply-to", b"replies/x"),
        ("tidegate-deadline-ms", b"soon"),
        ("tidegate-deadline-ms", b"9" * 19),
        ("tidegate-priority", b""),
        ("tidegate-attempt", b"1.5"),
    ],
)
def test_a_header_that_cannot_be_read_is_named(name: str, value: bytes) -> None:
    with pytest.raises(InferenceError) as caught:
        decode_envelope([("ce_id", b"i"), (name, value)], _ORIGIN)
    assert (caught.value.code, caught.value.field) == (ErrorCode.UNDECODABLE_RECORD, name)
    assert str(_ORIGIN) in caught.value.message


@pytest.mark.parametrize("name", ["ce_id", "traceparent"])
def test_what_is_given_back_with_the_answer_is_bounded(name: str) -> None:
    decode_envelope([(name, b"a" * 4096)], _ORIGIN)
    with pytest.raises(InferenceError):
        decode_envelope([(name, b"a" * 4097)], _ORIGIN)


@given(
    st.builds(
        Outcome,
        st.text(max_size=20),
        st.sampled_from([state for state in JobState if state.terminal]),
        _ORIGINS,
        st.binary(max_size=50),
        st.none() | st.integers(0, 50),
        _TIMES_MS,
        _TIMES_MS,
        _TIMES_MS.filter(lambda time_ms: time_ms < 2**47),
        st.text(max_size=55),
        st.text(max_size=20),
    )
)
def test_an_outcome_round_trips_as_record_and_as_stored_object(outcome: Outcome) -> None:
    assert decode_outcome_record(outcome_headers(outcome, b"/pool"), outcome.value) == outcome
    # A stored object holds its value itself.
    assert decode_stored(encode_stored(outcome)) == outcome


def test_a_stored_value_is_a_view() -> None:
    data = encode_stored(Outcome("i", JobState.SUCCEEDED, _ORIGIN, b"value"))
    value = decode_stored(data).value
    assert isinstance(value, memoryview)
    assert value.obj is data


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"TGO1" + data))
def test_what_is_no_stored_outcome_is_refused(data: bytes) -> None:
    with pytest.raises(InferenceError) as caught:
        decode_stored(data)
    assert caught.value.code is ErrorCode.INTERNAL


def test_the_key_of_an_outcome_follows_from_origin_and_epoch_and_sorts_by_offset() -> None:
    keys = [outcome_key(Origin("p.infer.m", 0, offset), 0xAB) for offset in (2, 10, 2**62)]
    assert keys[0] == "outcomes/p.infer.m/000000ab/0/00000000000000000002"
    assert keys == sorted(keys)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_outcome_gives_its_error_back(code: ErrorCode) -> None:
    error = InferenceError(code, "what", field="f", value=[1], remedy="do")
    outcome = Outcome("i", state_of(error), _ORIGIN, error_value(error))
    got = outcome.error()
    assert got is not None
    assert (got.code, got.detail()) == (code, error.detail())
    expected = {
        ErrorCode.DEADLINE_EXCEEDED: JobState.EXPIRED,
        ErrorCode.OVERLOADED: JobState.EXPIRED,
        ErrorCode.CANCELLED: JobState.CANCELLED,
    }
    assert outcome.state is expected.get(code, JobState.FAILED)


def test_an_error_that_cannot_be_read_is_internal() -> None:
    got = Outcome("i", JobState.FAILED, _ORIGIN, b"{").error()
    assert got is not None
    assert got.code is ErrorCode.INTERNAL


@given(_ORIGINS)
def test_origins_round_trip_as_text(origin: Origin) -> None:
    assert Origin.parse(str(origin)) == origin


def test_announcements_round_trip_and_others_are_passed_over() -> None:
    spec = TensorSpec("x", "FP32", (-1,))
    announcement = ModelAnnouncement(ModelMetadata("m", ("1",), "p", 8, (spec,), (spec,)), "pool", "t.infer.m", 7, 3)
    assert decode_announcement(announcement_key("m"), encode_announcement(announcement)) == ("m", announcement)
    assert decode_announcement(announcement_key("m"), None) == ("m", None)
    assert decode_announcement(b"cancel/1", b"x") is None
    assert decode_announcement(None, b"x") is None
