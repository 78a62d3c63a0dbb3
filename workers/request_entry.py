"""The entry of a request in its lane's queue: its three clocks and its priority, from its envelope and parameters.

A gateway writes what a caller asks for into the envelope. A plain producer's record may say it in the request's own
parameters, with the same meaning, counted from the record's arrival at the broker: `timeout` in microseconds is the
time to start, `deadline_ms` and `execution_timeout_ms` as their names say, `priority` the level. What the envelope says
comes first. Knows no queue and no Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

from msgspec.structs import replace

from schemas.deadline import Deadline
from schemas.record import Envelope
from workers.entry import Entry
from workers.work import Work

_CLOCKS = ("timeout", "deadline_ms", "execution_timeout_ms")


def read_clocks(work: Work, arrived_us: int, at_us: int) -> None:
    """Put what the parameters say of clocks into the envelope, where it says nothing. Once, when the request comes."""
    parameters = work.request.parameters
    if not any(name in parameters for name in _CLOCKS):
        return
    arrived_ms = (time.time_ns() // 1000 - (at_us - arrived_us)) // 1000
    work.envelope = _with_clocks(work.envelope, parameters, arrived_ms)


def _with_clocks(envelope: Envelope, parameters: dict[str, Any], arrived_ms: int) -> Envelope:
    start_ms = -(-_number(parameters, "timeout") // 1000)
    deadline_ms = _number(parameters, "deadline_ms")
    return replace(
        envelope,
        start_by=envelope.start_by or (Deadline(arrived_ms + start_ms) if start_ms else None),
        deadline=envelope.deadline or (Deadline(arrived_ms + deadline_ms) if deadline_ms else None),
        execution_timeout_ms=envelope.execution_timeout_ms or _number(parameters, "execution_timeout_ms"),
    )


def entry_of(work: Work, rows: int, signature: Hashable, at_us: int) -> Entry[Work]:
    """How the request waits from now on; again before each run of it, since one that has begun once need not hurry."""
    envelope = work.envelope
    entry = Entry(work, rows, signature, work.arrived_us, None, envelope.priority)
    if envelope.deadline is not None or envelope.start_by is not None:
        ahead_us = at_us - time.time_ns() // 1000
        if envelope.deadline is not None:
            entry.deadline_us = ahead_us + 1000 * envelope.deadline.at_ms
        if envelope.start_by is not None and not work.failed_runs:
            entry.start_by_us = ahead_us + 1000 * envelope.start_by.at_ms
    if parameters := work.request.parameters:
        entry.priority = entry.priority or _number(parameters, "priority")
        entry.timeout_us = _number(parameters, "timeout")
    return entry


def _number(parameters: dict[str, Any], name: str) -> int:
    """A request parameter that must be a whole number; anything else says nothing."""
    value = parameters.get(name, 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
