"""Jobs: the routes of a single job: its document, long polling, cancelling; and the statuses of many in one call.

Knows no Kafka client, and not how a job's standing is found.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.body import read_body
from gateway.caller import caller_in
from gateway.cancelling import Cancelling
from gateway.job_answer import document_response, json_response, too_late
from gateway.job_events import EVENT_STREAM, JobEvents
from gateway.job_id import Job
from gateway.job_watch import JobWatch
from gateway.problem import Problem, problem_of
from gateway.standing import JobDocument, document_of
from gateway.standings import Standings
from gateway.waits import wait_of, waits_for_start
from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.outcome import JobState

_ID_BYTES = 512  # of a JSON body, for each id that may be asked about


class _Asked(msgspec.Struct):
    """The body of a call about many jobs."""

    ids: list[str]


class _Told(msgspec.Struct, frozen=True):
    """Its answer: in the order of the ids, each a job's document or what is wrong with it."""

    jobs: list[JobDocument | Problem]


_asked_decoder = msgspec.json.Decoder(_Asked)


class Jobs:
    """The routes /v1/jobs/{id} and /v1/jobs/status."""

    def __init__(
        self,
        *,
        standings: Standings,
        watch: JobWatch,
        cancelling: Cancelling,
        events: JobEvents,
        max_wait_s: float,
        max_jobs: int,
    ) -> None:
        """`max_jobs`: about how many one call may ask."""
        self._standings = standings
        self._watch = watch
        self._cancelling = cancelling
        self._events = events
        self._max_wait_s = max_wait_s
        self._max_jobs = max_jobs

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route("/v1/jobs/status", self._post_status, methods=["POST"]),
            Route("/v1/jobs/{id}", self._get_or_delete, methods=["GET", "DELETE"]),
            Route("/v1/jobs/{id}/events", self._get_events, methods=["GET"]),
        ]

    async def _get_or_delete(self, request: Request) -> Response:
        return await (self._delete(request) if request.method == "DELETE" else self._get(request))

    async def _get(self, request: Request) -> Response:
        if EVENT_STREAM in request.headers.get("accept", ""):
            return await self._get_events(request)
        id_ = request.path_params["id"]
        job = self._standings.job(id_, caller_in(request.scope))
        timeout_s, started = wait_of(request.query_params, self._max_wait_s), waits_for_start(request.query_params)
        standing = await self._watch.wait(job, timeout_s=timeout_s, started=started)
        headers = {} if standing.state.terminal else {"retry-after": "1"}
        return document_response(request, document_of(id_, standing), headers)

    async def _delete(self, request: Request) -> Response:
        id_, caller = request.path_params["id"], caller_in(request.scope)
        job = self._standings.job(id_, caller)
        standing = await self._cancelling.cancel(job, tenant=caller.tenant)
        document = document_of(id_, standing)
        return json_response(document) if standing.state is JobState.CANCELLED else too_late(document)

    async def _get_events(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        job = self._standings.job(id_, caller_in(request.scope))
        return await self._events.stream(id_, job, request.headers.get("last-event-id", ""))

    async def _post_status(self, request: Request) -> Response:
        body = await read_body(request.receive, dict(request.scope["headers"]), self._max_jobs * _ID_BYTES)
        ids = self._ids(body)
        caller = caller_in(request.scope)
        found: list[JobDocument | Problem | None] = [None] * len(ids)
        jobs: list[Job] = []
        places: list[int] = []
        for place, id_ in enumerate(ids):
            try:
                jobs.append(self._standings.job(id_, caller))
                places.append(place)
            except InferenceError as error:
                found[place] = problem_of(error)
        # One that is none is news already: nobody should wait for the others before hearing of it.
        timeout_s = wait_of(request.query_params, self._max_wait_s) if len(jobs) == len(ids) else 0.0
        for place, standing in zip(places, await self._watch.wait_any(jobs, timeout_s=timeout_s), strict=True):
            if isinstance(standing, InferenceError):
                found[place] = problem_of(standing)
            else:
                found[place] = document_of(ids[place], standing)
        return json_response(_Told([each for each in found if each is not None]))

    def _ids(self, body: bytes) -> list[str]:
        try:
            ids = _asked_decoder.decode(body).ids
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
            raise invalid(
                f"the body asks about no jobs: {cause}",
                field="body",
                value=bytes(body[:40]),
                remedy='send {"ids": [job ids]}',
            ) from cause
        return bounded(ids, self._max_jobs, "ids")


def bounded(values: list[Any], most: int, field: str) -> list[Any]:
    """The values. Raises InferenceError: INVALID_REQUEST for none, PAYLOAD_TOO_LARGE for more than `most`."""
    if not values:
        raise invalid("there is nothing in it", field=field, value=values, remedy="send one at least")
    if len(values) > most:
        raise InferenceError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"{len(values)} in one call are too many, this gateway takes {most}",
            field=field,
            value=len(values),
            remedy="send several calls, or raise TIDEGATE_MAX_BATCH_REQUESTS",
        )
    return values
