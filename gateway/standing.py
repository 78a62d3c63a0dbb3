"""Standing: where a job stands at one moment, and the document in which callers read it. Pure; knows no route."""

from __future__ import annotations

import msgspec

from gateway.job_id import Job
from gateway.problem import Problem, problem_of
from schemas.outcome import JobState, Outcome
from schemas.record import rfc3339


class Standing(msgspec.Struct, frozen=True):
    """Where a job stands. `outcome` once it has ended. While it is queued, `position` is how many requests before it
    are not done, `eta_s` in how many seconds it may have ended, as far as that can be told from what was measured, and
    `reason` what it waits for.
    """

    job: Job
    state: JobState
    outcome: Outcome | None = None
    position: int | None = None
    eta_s: float | None = None
    reason: str | None = None


class JobDocument(msgspec.Struct, frozen=True):
    """A job as callers read it. What does not apply, or is not known, is null. `attempt` is the number of its last run:
    more than 1 after failures in passing.
    """

    id: str
    model: str
    state: str
    position: int | None = None
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: Problem | None = None
    links: dict[str, str] = {}
    reason: str | None = None
    eta_s: float | None = None
    attempt: int | None = None


def job_path(job_id: str) -> str:
    """Where a job's document is."""
    return f"/v1/jobs/{job_id}"


def queued_document(job_id: str, model: str) -> JobDocument:
    """The document of a job that was accepted this moment."""
    return JobDocument(job_id, model, JobState.QUEUED.value, links=_links(job_id))


def document_of(id_: str, standing: Standing) -> JobDocument:
    """The document of a job."""
    job, outcome = standing.job, standing.outcome
    if outcome is None:
        return JobDocument(
            id_,
            job.name,
            standing.state.value,
            standing.position,
            _time(job.created_ms),
            links=_links(id_),
            reason=standing.reason,
            eta_s=standing.eta_s,
        )
    error = outcome.error()
    return JobDocument(
        id_,
        job.name,
        outcome.state.value,
        None,
        _time(outcome.created_ms or job.created_ms),
        _time(outcome.started_ms),
        _time(outcome.finished_ms),
        None if error is None else problem_of(error, request_id=outcome.id),
        _links(id_),
        attempt=outcome.attempt if outcome.started_ms else None,
    )


def _links(id_: str) -> dict[str, str]:
    path = job_path(id_)
    return {"self": path, "result": f"{path}/result", "events": f"{path}/events"}


def _time(time_ms: int) -> str | None:
    return rfc3339(time_ms) if time_ms > 0 else None
