"""Cancelling: ends jobs at their owner's wish. Whose outcome is stored first has ended it: the worker's or ours.

So a job is cancelled the moment that this outcome is stored, whatever becomes of the message to the workers: they are
told so that they need not run it. Knows no route and no Kafka client.
"""

from __future__ import annotations

import time

from gateway.dispatcher import Dispatcher
from gateway.job_id import Job
from gateway.outcomes import Outcomes
from gateway.standing import Standing
from gateway.standings import Standings
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome, error_value

REASON = "cancelled by its owner"


class Cancelling:
    """Cancels jobs, also those that came from a wait that ran out."""

    def __init__(self, *, standings: Standings, outcomes: Outcomes, dispatcher: Dispatcher) -> None:
        self._standings = standings
        self._outcomes = outcomes
        self._dispatcher = dispatcher

    async def cancel(self, job: Job, *, tenant: str = "") -> Standing:
        """Cancel a job; where it stands now, which is CANCELLED unless it had ended otherwise before.

        Raises InferenceError as `Standings.find`, and UNAVAILABLE when the store or Kafka does not take it: it may be
        cancelled then, and calling again is right: it changes nothing, and tells the workers again while they need it.
        """
        standing = await self._standings.find(job)
        if standing.outcome is None:
            outcome = self._outcome(job, tenant)
            if await self._outcomes.put(outcome, job.epoch):
                standing = Standing(job, outcome.state, outcome)
            else:  # somebody was faster
                standing = await self._standings.find(job)
        # Workers remove the message with the request; a later one would stay for ever.
        if standing.state is JobState.CANCELLED and await self._standings.is_open(job):
            await self._dispatcher.cancel(self._standings.origin(job), job.epoch, REASON)
        return standing

    def _outcome(self, job: Job, tenant: str) -> Outcome:
        return Outcome(
            "",  # the request's own id is in its record only
            JobState.CANCELLED,
            self._standings.origin(job),
            error_value(InferenceError(ErrorCode.CANCELLED, REASON)),
            created_ms=job.created_ms,
            finished_ms=time.time_ns() // 1_000_000,
            tenant=tenant,
        )
