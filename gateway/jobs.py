"""Jobs: where a request stands and how it ended, by its id alone: offsets and stored outcomes tell, there is no table.

Knows no Kafka client.
"""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.backlog import Backlog
from gateway.caller import Caller, caller_in
from gateway.catalogue import Catalogue
from gateway.job_id import Job, decode_job_id
from gateway.outcomes import Outcomes
from gateway.problem import Problem, problem_of
from gateway.replies import RETENTION_MS
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome
from schemas.record import Origin, rfc3339
from schemas.topics import Topics
from schemas.v2 import HEADER_LENGTH, decode_response, encode_response

_OCTETS = "application/octet-stream"
_RETRY = {"retry-after": "1"}


class JobDocument(msgspec.Struct, frozen=True):
    """A job as callers read it. `position`: while queued, how many requests before it are not done. `reason`: what it
    waits for, as far as that is known.
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


def job_path(job_id: str) -> str:
    """Where a job's document is."""
    return f"/v1/jobs/{job_id}"


def queued_document(job_id: str, model: str) -> JobDocument:
    """The document of a job that was accepted this moment."""
    return JobDocument(job_id, model, JobState.QUEUED.value, links=_links(job_id))


class Jobs:
    """The routes below /v1/jobs."""

    def __init__(
        self, *, outcomes: Outcomes, catalogue: Catalogue, backlog: Backlog, topics: Topics, job_key: bytes
    ) -> None:
        self._outcomes = outcomes
        self._catalogue = catalogue
        self._backlog = backlog
        self._topics = topics
        self._job_key = job_key

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/jobs/{id}", self._get, methods=["GET"]),
            Route("/v1/jobs/{id}/result", self._get_result, methods=["GET"]),
        ]

    async def _get(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        job, found = await self._look_up(id_, caller_in(request.scope))
        return _json(_ended(id_, job, found) if isinstance(found, Outcome) else found)

    async def _get_result(self, request: Request) -> Response:
        _, found = await self._look_up(request.path_params["id"], caller_in(request.scope))
        if not isinstance(found, Outcome):
            return _json(found, status=202, headers=_RETRY)
        if error := found.error():
            raise error
        if _OCTETS in request.headers.get("accept", "") and found.header_length is not None:
            return Response(bytes(found.value), media_type=_OCTETS, headers={HEADER_LENGTH: str(found.header_length)})
        body, _ = encode_response(decode_response(found.value, found.header_length), binary=lambda name: False)
        return Response(body, media_type="application/json")

    async def _look_up(self, id_: str, caller: Caller) -> tuple[Job, Outcome | JobDocument]:
        job = decode_job_id(id_, key=self._job_key, tenant=caller.tenant)
        caller.require("jobs", job.name)
        origin = Origin(self._topics.infer(job.name), job.partition, job.offset)
        outcome = await self._outcomes.load(origin, job.epoch)
        if outcome is not None:
            return job, outcome
        model = self._catalogue.model(job.name)
        if model.epoch != job.epoch:
            raise _expired("the topic it was in has been deleted")
        partitions = (await self._backlog.of_pool(model.pool))[model.topic]
        if job.partition >= len(partitions):  # added a moment ago
            raise InferenceError(ErrorCode.UNAVAILABLE, "the topic's new partitions are not known yet")
        partition = partitions[job.partition]
        if partition.progress.is_done(job.offset):
            # Stored before it was acknowledged, so if it is to be found at all it is there now.
            outcome = await self._outcomes.load(origin, job.epoch)
            if outcome is not None:
                return job, outcome
            # The answer to a caller whose wait ran out is stored by a gateway, a moment after it was acknowledged,
            # or when another gateway adopts it. As long as the reply exists, it is underway.
            if not job.kept or _now_ms() - job.created_ms >= RETENTION_MS:
                raise _expired("results are kept for a limited time")
            return job, _unfinished(id_, job, JobState.RUNNING, None)
        if job.offset < partition.progress.started:
            return job, _unfinished(id_, job, JobState.RUNNING, None)
        return job, _unfinished(id_, job, JobState.QUEUED, partition.ahead_of(job.offset), self._reason(job.name))

    def _reason(self, model: str) -> str | None:
        progress = self._catalogue.loading(model, _now_ms())
        return None if progress is None else f"model loading, {progress.fetched_ratio:.0%} fetched"


def _unfinished(id_: str, job: Job, state: JobState, position: int | None, reason: str | None = None) -> JobDocument:
    return JobDocument(id_, job.name, state.value, position, _time(job.created_ms), links=_links(id_), reason=reason)


def _ended(id_: str, job: Job, outcome: Outcome) -> JobDocument:
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
    )


def _links(id_: str) -> dict[str, str]:
    return {"self": job_path(id_), "result": f"{job_path(id_)}/result"}


def _time(time_ms: int) -> str | None:
    return rfc3339(time_ms) if time_ms > 0 else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _expired(why: str) -> InferenceError:
    return InferenceError(ErrorCode.RESULT_EXPIRED, f"the result of this job is gone: {why}", field="id")


def _json(document: JobDocument, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers, "application/json")
