"""Exchange: one call of the gateway and its repetitions, without any I/O: a generator yields what to send or how long
to pause, and is sent what came back. Whoever runs it does the I/O, waiting or on an event loop.

Knows no route and no HTTP library.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tidegate.errors import NoAnswerError, TidegateError, error_of

T = TypeVar("T")

_PASSING = (408, 429, 503)


@dataclass(frozen=True, slots=True)
class HttpCall:
    """What to send. `path` is below the gateway's address, or a whole url elsewhere.

    `read_timeout_s`: how long the answer may take. `repeatable`: sent twice, it has one effect.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    read_timeout_s: float = 30.0
    repeatable: bool = True


@dataclass(frozen=True, slots=True)
class HttpReply:
    """What came back. Names of headers are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NoReply:
    """Nothing came back. `sent`: the gateway may have got the call nevertheless."""

    error: Exception
    sent: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for so long."""

    seconds: float


Step = HttpCall | Pause
Operation = Generator[Step, HttpReply | NoReply | None, T]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and at what distance a call is repeated that failed in passing.

    Repeated is what the gateway calls retryable with 429 or 503, and what got no answer if repeating it is safe. The
    pause is what `Retry-After` says, else it doubles from `first_s` up to `last_s`, less a random part, so that many
    clients do not come back together. `attempts` 1: never repeat.
    """

    attempts: int = 5
    first_s: float = 0.2
    last_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Clock:
    """The time and chance that exchanges go by; tests have their own."""

    now_s: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


def exchange(call: HttpCall, retries: Retries, clock: Clock, *, until_s: float | None = None) -> Operation[HttpReply]:
    """Send a call until there is a success, or an error that repeating does not help, or `until_s` by the clock.

    Raises TidegateError: what the gateway answered, or NoAnswerError.
    """
    pause_s = retries.first_s
    for attempt in range(1, retries.attempts + 1):
        reply = yield call
        assert reply is not None  # a call has a reply or none, never nothing
        if isinstance(reply, HttpReply) and reply.status < 400:
            return reply
        error, again = _failure(call, reply)
        if error.retry_after_s is not None:
            rest_s = error.retry_after_s * (1 + 0.1 * clock.chance())
        else:
            rest_s = pause_s * (0.5 + 0.5 * clock.chance())
        pause_s = min(2 * pause_s, retries.last_s)
        is_late = until_s is not None and clock.now_s() + rest_s >= until_s
        if not again or attempt == retries.attempts or is_late:
            raise error
        yield Pause(rest_s)
    raise AssertionError("this is a bug: the last attempt has returned or raised")


def _failure(call: HttpCall, reply: HttpReply | NoReply) -> tuple[TidegateError, bool]:
    """The error, and whether the call may be repeated."""
    if isinstance(reply, HttpReply):
        refused = error_of(reply.status, reply.headers, reply.body)
        return refused, refused.retryable and reply.status in _PASSING
    lost = NoAnswerError("no_answer", f"{call.method} {call.path}: {reply.error!r}")
    lost.retryable = call.repeatable or not reply.sent
    lost.__cause__ = reply.error
    return lost, lost.retryable
