"""JobBatch: many independent requests submitted in one call. Each is checked by itself; a bad one holds up nobody.

Knows no Kafka client and no store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.body import read_body
from gateway.call import Call, clocks_of, priority_of
from gateway.call_headers import with_headers
from gateway.caller import Caller, caller_in
from gateway.catalogue import Catalogue
from gateway.dispatcher import Dispatcher
from gateway.idempotency import Idempotency
from gateway.idempotency_key import HEADER, Answer, fingerprint, repeat_of
from gateway.job_answer import json_response
from gateway.jobs import bounded
from gateway.problem import Problem, problem_of
from gateway.standing import JobDocument, queued_document
from gateway.traceparent import traceparent_in
from gateway.webhook_submissions import WebhookSubmissions
from schemas.control import ModelAnnouncement
from schemas.errors import InferenceError, invalid
from schemas.request import InferenceRequest
from schemas.v2 import decode_request


class _Batch(msgspec.Struct):
    """The body: requests of the Open Inference Protocol v2, each with its own id and parameters."""

    requests: list[msgspec.Raw]
    version: str = ""


class _Submitted(msgspec.Struct, frozen=True):
    """The answer: in the order of the requests, each a job's document or what is wrong with the request."""

    jobs: list[JobDocument | Problem]


_BREATH = 64  # requests between which others get their turn
_decoder = msgspec.json.Decoder(_Batch)


class _Submission(msgspec.Struct, frozen=True):
    """A batch, and what its caller said of all of its requests by headers."""

    batch: _Batch
    sent: dict[bytes, bytes]
    caller: Caller
    webhook: str

    def call(self, request: InferenceRequest, id_: str, by_s: float) -> Call:
        """How one of the requests is run."""
        parameters = with_headers(request.parameters, self.sent)
        clocks, now_ms = clocks_of(parameters), time.time_ns() // 1_000_000
        return Call(
            id_,
            0,
            True,
            clocks.deadline(now_ms),
            traceparent_in(self.sent).decode(),
            self.batch.version,
            clocks.start_by(now_ms),
            clocks.execution_ms,
            priority_of(parameters),
            self.webhook,
            self.caller,
            hand_over_by_s=by_s,
        )


class JobBatch:
    """POST /v1/models/{model}/jobs."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        dispatcher: Dispatcher,
        idempotency: Idempotency,
        webhooks: WebhookSubmissions,
        max_requests: int,
        max_body_bytes: int,
    ) -> None:
        self._catalogue = catalogue
        self._dispatcher = dispatcher
        self._idempotency = idempotency
        self._webhooks = webhooks
        self._max_requests = max_requests
        self._max_body_bytes = max_body_bytes

    def routes(self) -> list[Route]:
        """What to mount."""
        return [Route("/v1/models/{model}/jobs", self._post, methods=["POST"])]

    async def _post(self, request: Request) -> Response:
        caller, name = caller_in(request.scope), request.path_params["model"]
        caller.require("infer", name)
        model = self._catalogue.model(name)
        sent: dict[bytes, bytes] = dict(request.scope["headers"])
        body = await read_body(request.receive, sent, self._max_body_bytes)
        batch = _decode(body)
        model.metadata.resolve(batch.version)
        bounded(batch.requests, self._max_requests, "requests")
        submission = _Submission(batch, sent, caller, self._webhooks.of(sent, detached=True, tenant=caller.tenant))
        submit = partial(self._submit, model, submission)
        if HEADER in sent:
            repeat = repeat_of(sent, caller.tenant, fingerprint("batch", name, body))
            answers = await self._idempotency.once(repeat, model, caller.tenant, submit)
        else:
            answers = await submit(self._dispatcher.next_id(), {}, 0.0)
        return json_response(_Submitted([_entry(each, name) for each in answers]), status=202)

    async def _submit(
        self, model: ModelAnnouncement, submission: _Submission, id_: str, taken: Mapping[str, str], by_s: float
    ) -> list[Answer]:
        """See gateway.idempotency.Submit."""
        answers: list[Answer] = []
        good: list[tuple[InferenceRequest, Call]] = []
        places: list[int] = []
        for place, raw in enumerate(submission.batch.requests):
            if not place % _BREATH:
                await asyncio.sleep(0)
            if job_id := taken.get(str(place)):
                answers.append(Answer(job_id))
                continue
            try:
                request = decode_request(raw)
                model.metadata.check(request)
                good.append((request, submission.call(request, f"{id_}.{place}", by_s)))
            except InferenceError as error:
                answers.append(Answer(error=error.detail()))
                continue
            places.append(place)
            answers.append(Answer())
        for place, ended in zip(places, await self._dispatcher.submit_all(model, good), strict=True):
            if isinstance(ended, InferenceError):
                answers[place] = Answer(error=ended.detail())
            else:
                answers[place] = Answer(ended.job_id)
        return answers


def _decode(body: bytes) -> _Batch:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise invalid(
            f"the body is no batch of requests: {cause}",
            field="body",
            value=bytes(body[:40]),
            remedy='send JSON: {"requests": [requests of the Open Inference Protocol v2]}',
        ) from cause


def _entry(answer: Answer, model: str) -> JobDocument | Problem:
    if answer.error is not None:
        return problem_of(InferenceError.from_detail(answer.error))
    return queued_document(answer.job_id, model)
