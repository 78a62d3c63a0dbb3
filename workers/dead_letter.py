"""DeadLetter: a record that could not be answered with success, kept with cause, attempts and origin.

The value and the headers are the record's own, so that it can be replayed as it was; what we add begins with
`tidegate-dead-`. Knows no Kafka client.
"""

from __future__ import annotations

from schemas.errors import InferenceError
from workers.delivery import Delivery

_PREFIX = "tidegate-dead-"
_CAUSE_CHARS = 2000  # a cause may quote the record, which is here already


def dead_letter_headers(
    delivery: Delivery, error: InferenceError, *, stage: str, attempt: int, now_ms: int
) -> list[tuple[str, bytes]]:
    """The headers of a dead letter. `stage` is decode, load or infer; `attempt` is how many runs have failed."""
    kept = [(name, value) for name, value in delivery.headers if not name.startswith(_PREFIX)]
    return [
        *kept,
        (_PREFIX + "code", error.code.wire.encode()),
        (_PREFIX + "message", error.message.encode()),
        (_PREFIX + "cause", repr(error.__cause__)[:_CAUSE_CHARS].encode() if error.__cause__ is not None else b""),
        (_PREFIX + "stage", stage.encode()),
        (_PREFIX + "attempts", b"%d" % attempt),
        (_PREFIX + "origin", str(delivery.origin).encode()),
        (_PREFIX + "time-ms", b"%d" % now_ms),
    ]
