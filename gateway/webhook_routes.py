"""WebhookRoutes: how a job's webhook stands, and having it delivered again. Knows no Kafka client."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.caller import caller_in
from gateway.job_id import Job, decode_job_id
from gateway.outcomes import Outcomes
from gateway.standing import job_path
from gateway.webhook_delivery import WebhookDelivery
from gateway.webhook_queue import WebhookQueue
from gateway.webhook_states import WebhookStage, WebhookState, WebhookStates
from schemas.errors import ErrorCode, InferenceError
from schemas.record import Origin, rfc3339
from schemas.topics import Topics
from store.object_store import StoreError

_PATH = "/v1/jobs/{id}/webhook"


class WebhookDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A webhook as callers read it. `state`: none, pending, delivered or failed, whatever the job's own state is.

    `attempts`: requests that were sent since it was last begun. `redeliveries`: how often it was begun anew.
    """

    id: str
    state: str
    url: str | None = None
    attempts: int = 0
    redeliveries: int = 0
    last_status: int | None = None
    last_error: str | None = None
    first_attempt_at: str | None = None
    last_attempt_at: str | None = None
    next_attempt_at: str | None = None
    delivered_at: str | None = None
    links: dict[str, str] = {}


class WebhookRoutes:
    """The routes below /v1/jobs/{id}/webhook."""

    def __init__(
        self, *, states: WebhookStates, queue: WebhookQueue, outcomes: Outcomes, topics: Topics, job_key: bytes
    ) -> None:
        self._states = states
        self._queue = queue
        self._outcomes = outcomes
        self._topics = topics
        self._job_key = job_key

    def routes(self) -> list[Route]:
        """What to mount."""
        return [
            Route(_PATH, self._get, methods=["GET"]),
            Route(f"{_PATH}/redeliver", self._redeliver, methods=["POST"]),
        ]

    async def _get(self, request: Request) -> Response:
        id_, job, origin = self._job(request)
        state = await self._state(origin, job.epoch)
        if state is None:
            outcome = await self._outcomes.load(origin, job.epoch)
            if outcome is None or not outcome.webhook:
                return _json(_document(id_, WebhookState(WebhookStage.NONE)))
            state = WebhookState(WebhookStage.PENDING, outcome.webhook)
        return _json(_document(id_, state))

    async def _redeliver(self, request: Request) -> Response:
        id_, job, origin = self._job(request)
        state = await self._state(origin, job.epoch)
        outcome = await self._outcomes.load(origin, job.epoch)
        if outcome is None:
            raise _nothing_to_deliver(state)
        if not outcome.webhook:
            raise _no_webhook()
        first = WebhookDelivery.of(outcome, job.epoch)
        # A generation of its own: what is still on its way of the former one is recognised as out of date.
        again = first.again(1 if state is None else state.generation + 1)
        await self._queue.put(again)
        pending = WebhookState(WebhookStage.PENDING, outcome.webhook, again.generation)
        return _json(_document(id_, pending), status=202)

    def _job(self, request: Request) -> tuple[str, Job, Origin]:
        id_ = request.path_params["id"]
        caller = caller_in(request.scope)
        caller = caller_in(request.scope)
        job = decode_job_id(id_, key=self._job_key, tenant=caller.tenant)
        caller.require("jobs", job.name)
        return id_, job, Origin(self._topics.infer(job.name), job.partition, job.offset)

    async def _state(self, origin: Origin, epoch: int) -> WebhookState | None:
        try:
            return await self._states.load(origin, epoch)
        except StoreError as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"the object store cannot be read: {cause}", remedy="try again in a moment"
            ) from cause


def _document(id_: str, state: WebhookState) -> WebhookDocument:
    return WebhookDocument(
        id_,
        state.stage.value,
        state.url or None,
        state.attempts,
        state.generation,
        state.status or None,
        state.error or None,
        _time(state.first_ms),
        _time(state.last_ms),
        _time(state.next_ms),
        _time(state.delivered_ms),
        {"self": f"{job_path(id_)}/webhook", "job": job_path(id_)},
    )


def _time(time_ms: int) -> str | None:
    return rfc3339(time_ms) if time_ms else None


def _json(document: WebhookDocument, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def _nothing_to_deliver(state: WebhookState | None) -> InferenceError:
    if state is not None:
        return InferenceError(
            ErrorCode.RESULT_EXPIRED, "the result of this job is gone: results are kept for a limited time", field="id"
        )
    return InferenceError(
        ErrorCode.CONFLICT,
        "there is nothing to deliver: the job has not ended, or its result has expired",
        field="id",
        remedy="ask for the job's state; its webhook is sent by itself once it has ended",
    )


def _no_webhook() -> InferenceError:
    return InferenceError(
        ErrorCode.CONFLICT,
        "the job was submitted without a webhook",
        field="id",
        remedy="fetch the result from the job's link; give the next job the header tidegate-webhook",
    )
