"""WebhookEndpoints: how much each receiver may be asked at a time, and whether it is worth it. No I/O, no clock.

An endpoint is one host of one tenant: one tenant's dead receiver never holds up another's, and a URL that differs for
each job is still one endpoint. Who may not go now is put off by the caller, in a topic, not in memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

_OPEN_AFTER = 5  # failures in a row
_FIRST_COOL_DOWN_MS = 10_000
_LAST_COOL_DOWN_MS = 300_000
_MAX_KNOWN = 10_000
_FIRST_MEAN_MS = 100.0  # of an attempt, before any
_MEAN_WEIGHT = 0.1
_UTILISATION = 0.8  # as busy as an endpoint is planned to be, so that who comes back finds it free
_SHORTEST_WAIT_MS = 1_000
_LONGEST_WAIT_MS = 3_600_000

Endpoint = tuple[str, str]  # tenant, scheme://host:port


class Admission(Enum):
    """GO: attempt it, and say `end`. BUSY: come again later. DOWN: it failed lately, do not even try."""

    GO = "go"
    BUSY = "busy"
    DOWN = "down"


class _Known:
    __slots__ = ("cool_down_ms", "failures", "free_ms", "held", "mean_ms", "open_until_ms", "turns")

    def __init__(self, concurrency: int) -> None:
        self.turns = asyncio.Semaphore(concurrency)
        self.held = 0
        self.mean_ms = _FIRST_MEAN_MS
        self.free_ms = 0.0
        self.failures = 0
        self.open_until_ms = 0
        self.cool_down_ms = 0


class WebhookEndpoints:
    """Circuits and counts of the endpoints that were asked lately; of at most ten thousand."""

    def __init__(self, *, concurrency: int, endpoint_concurrency: int) -> None:
        """Attempts under way at a time: to all endpoints, to one. Three times as many to one wait in memory."""
        self._turns = asyncio.Semaphore(concurrency)
        self._concurrency = endpoint_concurrency
        self._held = 4 * endpoint_concurrency
        self._known: OrderedDict[Endpoint, _Known] = OrderedDict()

    def admit(self, endpoint: Endpoint, *, now_ms: int, probe: bool = False) -> Admission:
        """Whether to attempt a delivery now; with `probe` also while it is left alone, unless another one does."""
        known = self._known.get(endpoint)
        if known is None:
            known = self._known[endpoint] = _Known(self._concurrency)
        self._known.move_to_end(endpoint)
        self._forget()
        if now_ms < known.open_until_ms and not (probe and not known.held):
            return Admission.DOWN
        if known.held >= (1 if known.failures else self._held):
            # While its circuit is to be tested, the one attempt under way decides for all.
            return Admission.DOWN if known.open_until_ms else Admission.BUSY
        known.held += 1
        return Admission.GO

    @asynccontextmanager
    async def turn(self, endpoint: Endpoint) -> AsyncIterator[None]:
        """The turn of an admitted attempt; waits for it."""
        async with self._known[endpoint].turns, self._turns:
            yield

    def is_down(self, endpoint: Endpoint, *, now_ms: int) -> bool:
        """Whether the endpoint has turned out to be down while an admitted attempt waited for its turn with others."""
        known = self._known[endpoint]
        return now_ms < known.open_until_ms and known.held > 1

    def reserve(self, endpoint: Endpoint, *, now_ms: int) -> int:
        """When to come again after BUSY: each later than the last by what an attempt takes, so none comes in vain."""
        known = self._known[endpoint]
        step_ms = known.mean_ms / (self._concurrency * _UTILISATION)
        known.free_ms = max(known.free_ms, float(now_ms + _SHORTEST_WAIT_MS)) + step_ms
        known.free_ms = min(known.free_ms, float(now_ms + _LONGEST_WAIT_MS))
        return int(known.free_ms)

    def end(self, endpoint: Endpoint, *, ok: bool, now_ms: int, took_ms: float = 0.0) -> None:
        """An admitted attempt has ended, after `took_ms`; `ok`: the endpoint answers as one does that is alive."""
        known = self._known[endpoint]
        known.held -= 1
        known.mean_ms += _MEAN_WEIGHT * (took_ms - known.mean_ms)
        if ok:
            known.failures = known.open_until_ms = known.cool_down_ms = 0
            return
        known.failures += 1
        if known.failures >= _OPEN_AFTER:
            known.cool_down_ms = min(max(2 * known.cool_down_ms, _FIRST_COOL_DOWN_MS), _LAST_COOL_DOWN_MS)
            known.open_until_ms = now_ms + known.cool_down_ms

    def release(self, endpoint: Endpoint) -> None:
        """An admitted attempt was not made, or not to its end: nothing is known of the endpoint."""
        self._known[endpoint].held -= 1

    def down(self, *, now_ms: int) -> int:
        """How many endpoints are not asked at present."""
        return sum(known.open_until_ms > now_ms for known in self._known.values())

    def _forget(self) -> None:
        """Let the one go that was asked longest ago, unless it is being asked."""
        if len(self._known) > _MAX_KNOWN:
            oldest = next(iter(self._known))
            if not self._known[oldest].held:
                del self._known[oldest]
            else:
                self._known.move_to_end(oldest)
