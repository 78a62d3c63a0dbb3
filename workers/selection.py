"""Selection: which dead letters are meant, by what is known of them. Pure: the clock is passed in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from schemas.errors import ErrorCode, invalid
from workers.dead_letter import STAGES, DeadLetter

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGO = re.compile(r"(\d{1,6})([smhdw])")
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Selection:
    """What is empty or None takes everything. Times are of the failure: from `since_ms`, before `until_ms`."""

    codes: frozenset[str] = frozenset()
    stages: frozenset[str] = frozenset()
    cause: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether this letter is meant. `cause` is looked for in message and cause, whatever its case."""
        return (
            (not self.codes or letter.code.wire in self.codes)
            and (not self.stages or letter.stage in self.stages)
            and (self.since_ms is None or letter.time_ms >= self.since_ms)
            and (self.until_ms is None or letter.time_ms < self.until_ms)
            and (not self.cause or self.cause.casefold() in f"{letter.message}\n{letter.cause}".casefold())
        )


def select(
    *, codes: Iterable[str], stages: Iterable[str], cause: str, since: str, until: str, now_ms: int
) -> Selection:
    """The selection that somebody wrote down. Raises InferenceError(INVALID_REQUEST) naming the field."""
    return Selection(
        _checked("code", codes, [code.wire for code in ErrorCode]),
        _checked("stage", stages, STAGES),
        cause,
        moment_ms(since, field="since", now_ms=now_ms) if since else None,
        moment_ms(until, field="until", now_ms=now_ms) if until else None,
    )


def moment_ms(text: str, *, field: str, now_ms: int) -> int:
    """A moment in milliseconds since the epoch: so long ago ('90s', '2h', '7d'), or in ISO 8601, UTC unless it says.

    Raises InferenceError(INVALID_REQUEST).
    """
    if ago := _AGO.fullmatch(text.strip()):
        return now_ms - 1000 * int(ago[1]) * _UNIT_S[ago[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
        return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as cause:
        raise invalid(
            f"{text!r} is no moment",
            field=field,
            value=text,
            remedy="write how long ago it is (90s, 15m, 2h, 7d, 1w), or a time such as 2026-11-30T09:00 (UTC)",
        ) from cause


def kind_of(letter: DeadLetter) -> tuple[str, str, str]:
    """What letters of one cause have in common: stage, code, and the message without its numbers."""
    return letter.stage, letter.code.wire, _NUMBERS.sub("#", letter.message)


def _checked(field: str, values: Iterable[str], known: Iterable[str]) -> frozenset[str]:
    asked, there_are = frozenset(values), sorted(known)
    for value in sorted(asked.difference(there_are)):
        raise invalid(
            f"there is no {field} {value!r}", field=field, value=value, remedy=f"use one of {', '.join(there_are)}"
        )
    return asked
