"""Admission: who may put another request in. Pure: counts, clocks and what the queue is like are passed in.

Every refusal is OVERLOADED, with a time to come again that is computed where there is something to compute it of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gateway.tenant_queues import TenantQueues
from gateway.token_bucket import TokenBucket
from schemas.errors import ErrorCode, InferenceError

_MAX_BUCKETS = 10_000
_LONGEST_RETRY_S = 3600.0
# A queue is told to be too long for a deadline only when it would be even if it went so much faster than measured.
_DOUBT = 1.5


class Limits(msgspec.Struct, frozen=True):
    """What one model or one tenant may have; 0: no limit. A model's `backlog` counts requests in its queue, of all
    gateways and producers; a tenant's those jobs in all queues that came by this gateway. `rate_rps` and `burst` are a
    tenant's requests per second and at once, of this gateway.
    """

    in_flight: int = 0
    backlog: int = 0
    rate_rps: float = 0.0
    burst: int = 0


class AdmissionLimits(msgspec.Struct, frozen=True):
    """All limits. `models` and `tenants` hold what differs from `model` and `tenant`, which hold for each of them."""

    in_flight: int
    model: Limits = Limits()
    tenant: Limits = Limits()
    models: Mapping[str, Limits] = {}
    tenants: Mapping[str, Limits] = {}

    def of_tenant(self, tenant: str) -> Limits:
        """The limits that hold for a tenant."""
        return self.tenants.get(tenant, self.tenant)


class Queue(msgspec.Struct, frozen=True):
    """A model's queue as it was `age_s` ago: how many requests, and how many of them end per second; None: unknown."""

    backlog: int
    rate_rps: float | None = None
    age_s: float = 0.0

    def wait_s(self) -> float | None:
        """How long a request that comes now waits, at least; None: unknown."""
        return None if not self.rate_rps else max(0.0, self.backlog / self.rate_rps - self.age_s)


QueueOf = Callable[[str], Queue | None]  # by model; None: not known, or known too long ago


class Admission:
    """Counts what is in flight. `enter` and `leave` come in pairs."""

    def __init__(
        self,
        limits: AdmissionLimits,
        *,
        queue_of: QueueOf = lambda model: None,
        queued: TenantQueues | None = None,
    ) -> None:
        """`queue_of` is asked only where a limit, a refusal or a deadline needs it, and must not wait. `queued`: whose
        jobs are in queues, which `queue_of` keeps true; None: nobody's.
        """
        self._limits = limits
        self._queue_of = queue_of
        self.queued = queued or TenantQueues(lambda tenant: 0)
        self._by_model: dict[str, int] = {}
        self._by_tenant: dict[str, int] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._asks_more = limits != AdmissionLimits(limits.in_flight)
        self.in_flight = 0

    def enter(self, model: str, tenant: str, *, now_s: float, count: int = 1) -> None:
        """Count one more in flight. Raises InferenceError(OVERLOADED), and counts nothing then. `now_s` is monotonic.

        `count`: of requests that are submitted together; all of them count to the tenant's rate.
        """
        if self.in_flight >= self._limits.in_flight:
            raise self._refusal(
                f"{self.in_flight} requests are in flight, as many as this gateway takes", self._retry_s(model)
            )
        if self._asks_more:
            self._check(model, tenant, now_s, count)
            self._by_model[model] = self._by_model.get(model, 0) + 1
            self._by_tenant[tenant] = self._by_tenant.get(tenant, 0) + 1
        self.in_flight += 1

    def leave(self, model: str, tenant: str) -> None:
        """Count one less."""
        self.in_flight -= 1
        if self._asks_more:
            _count_down(self._by_model, model)
            _count_down(self._by_tenant, tenant)

    def check_time(self, model: str, budget_ms: float, what: str) -> None:
        """Refuse what would not begin within `budget_ms`, `what` being who says so. Never on doubt.

        Raises InferenceError(OVERLOADED).
        """
        queue = self._queue_of(model)
        wait_s = None if queue is None else queue.wait_s()
        if queue is None or wait_s is None or wait_s / _DOUBT <= budget_ms / 1000:
            return
        raise self._refusal(
            f"the {what} of {budget_ms:.0f} ms cannot be met: {queue.backlog} requests wait for model {model!r}, about "
            f"{wait_s:.1f} s at {queue.rate_rps:.1f} requests/s",
            wait_s - budget_ms / 1000,
            remedy="come again later, or allow more time",
        )

    def _check(self, model: str, tenant: str, now_s: float, count: int) -> None:
        of_model = self._limits.models.get(model, self._limits.model)
        of_tenant = self._limits.of_tenant(tenant)
        if of_model.in_flight and self._by_model.get(model, 0) >= of_model.in_flight:
            raise self._refusal(
                f"{of_model.in_flight} requests to model {model!r} are in flight, as many as may be",
                self._retry_s(model),
            )
        if of_tenant.in_flight and self._by_tenant.get(tenant, 0) >= of_tenant.in_flight:
            raise self._refusal(
                f"{of_tenant.in_flight} requests of tenant {tenant!r} are in flight, as many as may be",
                self._retry_s(model),
            )
        if of_tenant.backlog:
            self._check_queued(model, tenant, of_tenant.backlog, count)
        if of_model.backlog and (queue := self._queue_of(model)) is not None and queue.backlog >= of_model.backlog:
            above = queue.backlog - of_model.backlog + 1
            raise self._refusal(
                f"{queue.backlog} requests wait for model {model!r}, of {of_model.backlog} that may",
                above / queue.rate_rps if queue.rate_rps else None,
            )
        if of_tenant.rate_rps and (
            wait_s := self._bucket(tenant, of_tenant, now_s).take(now_s, count)
        ):  # last: it takes
            raise self._refusal(
                f"tenant {tenant!r} sends more than {of_tenant.rate_rps:g} requests/s", wait_s, remedy="send slower"
            )

    def _check_queued(self, model: str, tenant: str, limit: int, count: int) -> None:
        wait_s = self._retry_s(model)  # for all of the queue to go; asked in any case, so that the count stays true
        queued = self.queued.count(tenant)
        above = queued + count - limit
        if above <= 0:
            return
        if count > limit:
            what, remedy = f"{count} requests at once are more than the {limit} that", "submit fewer at once"
        else:
            what, remedy = f"{queued} jobs of tenant {tenant!r} wait or run, of {limit} that", "come again later"
        raise self._refusal(
            f"{what} may", None if wait_s is None or above > queued else wait_s * above / queued, remedy=remedy
        )

    def _bucket(self, tenant: str, limits: Limits, now_s: float) -> TokenBucket:
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets = {name: each for name, each in self._buckets.items() if not each.is_full(now_s)}
            burst = limits.burst or limits.rate_rps
            bucket = self._buckets[tenant] = TokenBucket(rate=limits.rate_rps, burst=burst, now_s=now_s)
        return bucket

    def _retry_s(self, model: str) -> float | None:
        queue = self._queue_of(model)
        return None if queue is None else queue.wait_s()

    def _refusal(
        self,
        what: str,
        retry_after_s: float | None,
        *,
        remedy: str = "try again later, or submit with the header Prefer: respond-async",
    ) -> InferenceError:
        seconds = None if retry_after_s is None else min(retry_after_s, _LONGEST_RETRY_S)
        return InferenceError(ErrorCode.OVERLOADED, what, remedy=remedy, retry_after_s=seconds)


def _count_down(counts: dict[str, int], name: str) -> None:
    left = counts[name] - 1
    if left:
        counts[name] = left
    else:
        del counts[name]  # names come from callers: they must not stay for ever
