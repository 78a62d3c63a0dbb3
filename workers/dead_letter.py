"""DeadLetter: a record that could not be answered with success, kept with cause, attempts and origin.

The value and the headers are the record's own, so that it can be replayed as it was; what we add begins with
`tidegate-dead-`. A note of what was replayed lies among the letters, in their own partition, and so lives as long as
they do: a consumer group's offsets would be forgotten after a week without members. Knows no Kafka client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from schemas.errors import ErrorCode, InferenceError, shown
from schemas.record import DEADLINE_HEADER, START_BY_HEADER, VERSION_HEADER, Headers, Origin
from workers.delivery import Delivery

STAGES = ("decode", "queue", "load", "infer")

_PREFIX = "tidegate-dead-"
_REPLAYED = _PREFIX + "replayed"
_ATTEMPT = "tidegate-attempt"
_REPLAY_OF = "tidegate-replay-of"
_CLAIM = "tidegate-claim"
_CAUSE_CHARS = 2000  # a cause may quote the record, which is here already
_MAX_DIGITS = 18  # of an int64
_MAX_REPLAYED = 10_000  # letters that one note may tell of; bounds what a hostile one can make us do
# Who waited has gone, and its time is over; a job's recorded end stands (see `replayed_request`).
_NOT_REPLAYED = frozenset(
    {"tidegate-reply-to", DEADLINE_HEADER, START_BY_HEADER, "tidegate-stored", _ATTEMPT, _REPLAY_OF, "ce_id"}
)


class DeadLetter(msgspec.Struct, frozen=True):
    """A dead letter as it was read back.

    `place` is its own, `origin` that of the request's record, which arrived at the broker at `arrived_ms` (0: an older
    worker did not tell) and failed at `time_ms` by the worker's clock, in its run number `attempts`. `id` is the one it
    was answered under. `claim` is the object key of a value that was too large for a record of ours.
    """

    place: Origin
    origin: Origin
    id: str
    code: ErrorCode
    message: str
    cause: str
    stage: str
    attempts: int
    arrived_ms: int
    time_ms: int
    claim: str
    headers: tuple[tuple[str, bytes], ...]
    value: bytes | None


def dead_letter_headers(
    delivery: Delivery, error: InferenceError, *, stage: str, attempt: int, now_ms: int
) -> list[tuple[str, bytes]]:
    """The headers of a dead letter. `stage` is one of STAGES; `attempt` is how many runs have failed.

    The sizes of what is added are bounded, whatever the error quotes: about 16 KiB in all.
    """
    kept = [(name, value) for name, value in delivery.headers if not name.startswith(_PREFIX)]
    cause = shown(error.__cause__)[:_CAUSE_CHARS] if error.__cause__ is not None else ""
    return [
        *kept,
        (_PREFIX + "code", error.code.wire.encode()),
        (_PREFIX + "message", error.message.encode()),
        (_PREFIX + "cause", cause.encode(errors="replace")),
        (_PREFIX + "stage", stage.encode()),
        (_PREFIX + "attempts", b"%d" % attempt),
        (_PREFIX + "origin", str(delivery.origin).encode()),
        (_PREFIX + "arrived-ms", b"%d" % delivery.appended_ms),
        (_PREFIX + "time-ms", b"%d" % now_ms),
    ]


def read_dead_letter(headers: Headers, value: bytes | None, place: Origin) -> DeadLetter:
    """The dead letter at `place`. Raises InferenceError(UNDECODABLE_RECORD) for anything else."""
    told = dict(headers)
    try:
        origin = Origin.parse(told[_PREFIX + "origin"].decode())
        return DeadLetter(
            place,
            origin,
            _id_of(told, origin),
            ErrorCode.from_wire(told[_PREFIX + "code"].decode()),
            _text(told, "message"),
            _text(told, "cause"),
            _text(told, "stage"),
            max(1, _number(told[_PREFIX + "attempts"])),
            _number(told.get(_PREFIX + "arrived-ms", b"0")),
            _number(told[_PREFIX + "time-ms"]),
            told.get(_PREFIX + "claim", b"").decode(),
            tuple((name, content) for name, content in headers if not name.startswith(_PREFIX)),
            value,
        )
    except (KeyError, ValueError, AttributeError, TypeError) as cause:
        raise InferenceError(
            ErrorCode.UNDECODABLE_RECORD, f"the record at {place} is no dead letter: {shown(cause)}", field="headers"
        ) from cause


def replayed_request(letter: DeadLetter, *, any_version: bool = False) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Value and headers of the request's record as it is sent again, under the id that it had.

    Its caller has gone: no deadline, no reply address, so the answer is found on the results topic. It asks for no
    stored outcome: the job's own says how it ended and stands, for an end that was told must not change. Attempts are
    counted on, and `tidegate-replay-of` tells the first place. `any_version` leaves the asked version out.
    """
    left_out = _NOT_REPLAYED | {VERSION_HEADER} if any_version else _NOT_REPLAYED
    had = dict(letter.headers)
    headers = [
        ("ce_id", letter.id.encode()),
        *((name, content) for name, content in letter.headers if name not in left_out),
        (_ATTEMPT, b"%d" % (letter.attempts + 1)),
        (_REPLAY_OF, had.get(_REPLAY_OF) or str(letter.origin).encode()),
    ]
    if letter.claim and _CLAIM not in had:
        return b"", [*headers, (_CLAIM, letter.claim.encode())]
    return letter.value, headers


def replayed_note(offsets: Iterable[int]) -> list[tuple[str, bytes]]:
    """The headers of a note, without value, that the letters at these offsets of its partition were replayed."""
    runs: list[list[int]] = []
    for offset in sorted(offsets):
        if runs and offset == runs[-1][1]:
            runs[-1][1] = offset + 1
        else:
            runs.append([offset, offset + 1])
    return [(_REPLAYED, ",".join(f"{first}-{end}" for first, end in runs).encode())]


def read_replayed_note(headers: Headers) -> Sequence[int] | None:
    """The offsets that a note tells of; None: this is no note. One that cannot be read tells of nothing."""
    text = dict(headers).get(_REPLAYED)
    if text is None:
        return None
    offsets: list[int] = []
    try:
        for run in text.split(b","):
            first, end = (_number(number) for number in run.split(b"-"))
            if not 0 < end - first <= _MAX_REPLAYED - len(offsets):
                return ()
            offsets += range(first, end)
    except ValueError:
        return ()
    return offsets


def _id_of(told: dict[str, bytes], origin: Origin) -> str:
    try:
        return told["ce_id"].decode()
    except (KeyError, UnicodeDecodeError, AttributeError):
        return str(origin)  # as it was answered: see schemas/record.py


def _text(told: dict[str, Any], name: str) -> str:
    text: str = told[_PREFIX + name].decode(errors="replace")
    return text


def _number(text: bytes) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of more than {_MAX_DIGITS} digits")
    return int(text)
