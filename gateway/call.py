"""Call: how a caller wants a request run, whatever the protocol. Read from the request's own parameters.

Knows no HTTP and no gRPC; each protocol adds what its headers say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.caller import ANYONE, Caller
from schemas.deadline import Deadline
from schemas.errors import invalid

_MAX_TIME = 1 << 53  # beyond it a JSON number is not exact
_MAX_PRIORITY = 1 << 32


class Clocks(msgspec.Struct, frozen=True):
    """The three clocks of a request, as budgets in milliseconds; 0: none.

    `start_ms`: until it must have begun to run. `deadline_ms`: until its answer is of use. `execution_ms`: how long it
    may run once it has begun.
    """

    start_ms: int = 0
    deadline_ms: int = 0
    execution_ms: int = 0

    def start_by(self, now_ms: int) -> Deadline | None:
        """When it must have begun."""
        return Deadline.after(self.start_ms, now_ms=now_ms) if self.start_ms else None

    def deadline(self, now_ms: int) -> Deadline | None:
        """When its answer is of no use any more."""
        return Deadline.after(self.deadline_ms, now_ms=now_ms) if self.deadline_ms else None


NO_CLOCKS = Clocks()


class Call(msgspec.Struct, frozen=True):
    """How a caller wants a request run.

    `detached`: do not wait, the worker stores the outcome. `wait_ms`: how long to wait otherwise. `webhook` is a URL to
    tell the outcome to, for detached requests only. `stored`: the worker stores the outcome although somebody waits.
    `on_accepted` is told the job id once the broker holds the request, waiting or not. `hand_over_by_s` is when, by the
    event loop's clock, the request must not be handed to Kafka any more; 0: never. `ends_with_caller`: when the caller
    leaves, the request must not run any more, and nobody wants its answer.
    """

    id: str
    wait_ms: int
    detached: bool = False
    deadline: Deadline | None = None
    traceparent: str = ""
    model_version: str = ""
    start_by: Deadline | None = None
    execution_timeout_ms: int = 0
    priority: int = 0
    webhook: str = ""
    caller: Caller = ANYONE
    stored: bool = False
    on_accepted: Callable[[str], None] | None = None
    hand_over_by_s: float = 0.0
    ends_with_caller: bool = False


def clocks_of(parameters: dict[str, Any]) -> Clocks:
    """The clocks in a request's parameters: `timeout` in microseconds, as the protocol has it, is the time to start;
    `deadline_ms` and `execution_timeout_ms` are ours. Raises InferenceError(INVALID_REQUEST).
    """
    if not parameters:
        return NO_CLOCKS
    timeout_us = _whole(parameters, "timeout", _MAX_TIME, "microseconds until which the request must have started")
    return Clocks(
        -(-timeout_us // 1000),
        _whole(parameters, "deadline_ms", _MAX_TIME, "milliseconds until which the answer is of use"),
        _whole(parameters, "execution_timeout_ms", _MAX_TIME, "milliseconds that the request may run"),
    )


def priority_of(parameters: dict[str, Any]) -> int:
    """The parameter `priority`: 1 is the highest level, 0 the model's default. Raises InferenceError."""
    return _whole(parameters, "priority", _MAX_PRIORITY, "a priority level, 1 being the highest") if parameters else 0


def _whole(parameters: dict[str, Any], name: str, limit: int, what: str) -> int:
    value = parameters.get(name)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value < limit:
        raise invalid(
            f"the parameter {name} is no whole number: {what}",
            field=f"parameters.{name}",
            value=value,
            remedy=f"send {what}, less than {limit}; 0 or nothing for none",
        )
    return value
