"""Idempotency: runs a request with an idempotency key once, and answers its repeats as the first.

What is guaranteed: within the window, requests with one key of one tenant are one job, also when the gateway dies
between its claim of the key and the answer. Whoever comes then, once the dead one's lease is over, looks for its record
in Kafka and adopts it; only if there is none is the request produced again. It could run twice only if a gateway is
frozen for longer than 20 s at the very moment between looking at its clock and sending, or if clocks differ by that.
Knows no route and no Kafka client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec.structs import replace

from gateway.call import Call
from gateway.dispatcher import Accepted, Dispatcher
from gateway.idempotency_key import Answer, Repeat
from gateway.job_watch import JobWatch
from gateway.key_claims import LEASE_MS, Claimed, KeyClaims
from gateway.outcomes import Outcomes
from gateway.record_search import RecordSearch
from gateway.standing import Standing
from gateway.standings import Standings
from gateway.waiter import MayRunError
from schemas.control import ModelAnnouncement
from schemas.errors import InferenceError
from schemas.outcome import Outcome
from schemas.request import InferenceRequest

_log = structlog.get_logger(__name__)

# A third of the lease to hand over, a third for the broker, a third for clocks that differ.
_HAND_OVER_WITHIN_S = LEASE_MS / 1000 / 3

# Submits a batch, each request under the given id, a dot and its number, but for those that have a job id already, by
# number; until the given moment by the event loop's clock.
Submit = Callable[[str, Mapping[str, str], float], Awaitable[list[Answer]]]


class Idempotency:
    """Requests with idempotency keys."""

    def __init__(
        self,
        *,
        claims: KeyClaims,
        search: RecordSearch,
        dispatcher: Dispatcher,
        standings: Standings,
        watch: JobWatch,
        outcomes: Outcomes,
    ) -> None:
        self._claims = claims
        self._search = search
        self._dispatcher = dispatcher
        self._standings = standings
        self._watch = watch
        self._outcomes = outcomes

    async def infer(
        self, repeat: Repeat, model: ModelAnnouncement, request: InferenceRequest, call: Call
    ) -> Outcome | Accepted:
        """As `Dispatcher.infer`, once per key; a repeat gets the first one's answer, or its job. The worker stores the
        outcome also for one who waits, so that there is something to repeat. Raises InferenceError as
        `KeyClaims.claim`, too.
        """
        claimed = await self._claims.claim(repeat, call.id)
        if isinstance(claimed, Claimed) and claimed.dead:
            claimed = await self._adopt(claimed, model, call) or claimed
        if not isinstance(claimed, Claimed):
            return await self._attach(claimed[0].job_id, call)
        return await self._run(claimed, model, request, call)

    async def once(self, repeat: Repeat, model: ModelAnnouncement, tenant: str, submit: Submit) -> list[Answer]:
        """Submit a batch once per key; a repeat gets the same answers, those of refused requests included."""
        claimed = await self._claims.claim(repeat, self._dispatcher.next_id())
        if not isinstance(claimed, Claimed):
            return list(claimed)
        try:
            taken = await self._search.find(model, claimed.dead, tenant) if claimed.dead else {}
            answers = await submit(claimed.claim.id, taken, _hand_over_by_s())
        except InferenceError:  # as a whole, so nothing was taken
            await self._claims.give_back(claimed)
            raise
        await self._claims.tell(claimed, answers)
        return answers

    async def _run(
        self, claimed: Claimed, model: ModelAnnouncement, request: InferenceRequest, call: Call
    ) -> Outcome | Accepted:
        telling: list[asyncio.Task[None]] = []

        def tell(job_id: str) -> None:
            told = self._claims.tell(claimed, (Answer(job_id),))
            telling.append(asyncio.get_running_loop().create_task(told, name="tell the answer of an idempotency key"))

        call = replace(call, stored=True, on_accepted=tell, hand_over_by_s=_hand_over_by_s())
        try:
            return await self._dispatcher.infer(model, request, call)
        except MayRunError:  # nobody knows whether it was taken: the next one looks
            raise
        except InferenceError:
            if not telling:
                await self._claims.give_back(claimed)
            raise
        finally:
            for error in await asyncio.gather(*telling, return_exceptions=True):
                if error is not None:  # the answer is right nevertheless; a repeat will look for the record
                    _log.warning("tell_key_failed", place=claimed.place, error=repr(error))

    async def _adopt(self, claimed: Claimed, model: ModelAnnouncement, call: Call) -> tuple[Answer, ...] | None:
        """What the dead claimant's request became, if it was taken; the key is answered with it then."""
        try:
            job_id = (await self._search.find(model, claimed.dead, call.caller.tenant)).get("")
        except InferenceError:
            await self._claims.give_back(claimed)
            raise
        if job_id is None:
            return None
        _log.info("adopt_request", dead=[claim.id for claim in claimed.dead], by=call.id)
        answers = (Answer(job_id),)
        await self._claims.tell(claimed, answers)
        return answers

    async def _attach(self, job_id: str, call: Call) -> Outcome | Accepted:
        """The answer of the job that a repeat means, waited for as its caller would; else the job as it stands."""
        job = self._standings.job_of(job_id, call.caller.tenant)
        timeout_s = 0.0 if call.detached else call.wait_ms / 1000
        standing: Standing = await self._watch.wait(job, timeout_s=timeout_s)
        if standing.outcome is None or call.detached:
            return Accepted(job_id, standing)
        return await self._outcomes.with_value(standing.outcome)


def _hand_over_by_s() -> float:
    return asyncio.get_running_loop().time() + _HAND_OVER_WITHIN_S
