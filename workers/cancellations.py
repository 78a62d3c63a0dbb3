"""Cancellations: which requests must not run any more, as the control topic tells. Pure, and bounded.

What is known of here is only what somebody may still deliver: a cancellation goes when its control record is removed,
which whoever owns the partition does once everything up to the request is committed. One that is forgotten, for there
are too many, lets its request run: that is always right. Knows no Kafka client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from schemas.cancellation import Cancellation, cancellation_key, decode_cancellation
from schemas.errors import ErrorCode, InferenceError
from schemas.record import Origin
from schemas.tensor import Buffer

_MAX_KNOWN = 50_000
_MAX_STRANGE = 10_000  # of topics that are not consumed here: they may come to be, with the next model
_REASON_CHARS = 200
_STALE_MS = 8 * 24 * 3600 * 1000  # longer than requests are kept, unless somebody has set that

Place = tuple[str, int]  # topic and partition


class Cancellations:
    """Cancelled requests of the topics that are known, in the life of each that is served now."""

    def __init__(self, *, max_known: int = _MAX_KNOWN, max_strange: int = _MAX_STRANGE) -> None:
        self._max_known = max_known
        self._max_strange = max_strange
        self._epochs: dict[str, int] = {}
        self._reasons: dict[Place, dict[int, str]] = {}
        self._strange: dict[tuple[Origin, int], str] = {}
        self._fresh: set[str] = set()
        self.count = 0
        self.forgotten = 0

    def know(self, topic: str, epoch: int) -> None:
        """Requests come from this topic, in this life of it; what was told of it before counts from now on."""
        self._epochs[topic] = epoch
        for origin, of_epoch in [key for key in self._strange if key[0].topic == topic]:
            reason = self._strange.pop((origin, of_epoch))
            if of_epoch == epoch:
                self._add(origin, reason)

    def apply(self, key: Buffer | None, value: Buffer | None) -> bool:
        """Take one control record in; False for other kinds of record."""
        told = decode_cancellation(key, value)
        if told is None:
            return False
        origin, epoch, cancellation = told
        known_epoch = self._epochs.get(origin.topic)
        if cancellation is None:
            self._strange.pop((origin, epoch), None)
            if epoch == known_epoch:
                self.remove(origin)
        elif known_epoch is None:
            self._strange[origin, epoch] = cancellation.reason[:_REASON_CHARS]
            if len(self._strange) > self._max_strange:
                self._strange.pop(next(iter(self._strange)))
        elif epoch == known_epoch:
            self._add(origin, cancellation.reason[:_REASON_CHARS])
        return True

    def is_needless(self, key: Buffer | None, value: Buffer | None, now_ms: int) -> bool:
        """Whether a control record cancels nothing that could ever come: it may be removed. For what was read at the
        start, when the epochs are as fresh as can be.
        """
        told = decode_cancellation(key, value)
        if told is None or told[2] is None:
            return False
        origin, epoch, cancellation = told
        return self._epochs.get(origin.topic, epoch) != epoch or _is_stale(cancellation, now_ms)

    def take_fresh(self) -> frozenset[str]:
        """The topics of which something was cancelled since the last call."""
        fresh, self._fresh = frozenset(self._fresh), set()
        return fresh

    def has(self, origin: Origin) -> bool:
        """Whether this request is cancelled."""
        reasons = self._reasons.get((origin.topic, origin.partition))
        return reasons is not None and origin.offset in reasons

    def error(self, origin: Origin) -> InferenceError:
        """What a request that is cancelled ends with."""
        reason = self._reasons.get((origin.topic, origin.partition), {}).get(origin.offset, "")
        return InferenceError(ErrorCode.CANCELLED, f"the request was cancelled: {reason}" if reason else _CANCELLED)

    def done(self, committed: Callable[[Place], int | None]) -> Iterator[Origin]:
        """Those of partitions that are ours, by what is `committed` of them, and that nobody will deliver again."""
        for place, reasons in self._reasons.items():
            end = committed(place)
            if end is not None:
                yield from (Origin(*place, offset) for offset in reasons if offset < end)

    def key(self, origin: Origin) -> bytes:
        """The key of its control record."""
        return cancellation_key(origin, self._epochs[origin.topic])

    def remove(self, origin: Origin) -> None:
        """It is done. Idempotent."""
        place = origin.topic, origin.partition
        reasons = self._reasons.get(place)
        if reasons is not None and reasons.pop(origin.offset, None) is not None:
            self.count -= 1
            if not reasons:
                del self._reasons[place]

    def _add(self, origin: Origin, reason: str) -> None:
        reasons = self._reasons.setdefault((origin.topic, origin.partition), {})
        self.count += origin.offset not in reasons
        reasons[origin.offset] = reason
        self._fresh.add(origin.topic)
        if self.count > self._max_known:
            place, first = next((place, next(iter(reasons))) for place, reasons in self._reasons.items())
            self.remove(Origin(*place, first))
            self.forgotten += 1


_CANCELLED = "the request was cancelled"


def _is_stale(cancellation: Cancellation | None, now_ms: int) -> bool:
    return cancellation is not None and now_ms - cancellation.at_ms > _STALE_MS
