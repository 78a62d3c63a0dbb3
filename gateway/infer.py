"""Infer: the hot route, from an HTTP request to an HTTP response. Plain ASGI, for each microsecond is paid per request.

Must not know Kafka.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from gateway.body import ENCODE_ABOVE_BYTES, Bodies, chosen_encoding, encoded
from gateway.byte_budget import Held
from gateway.call import Call, clocks_of, priority_of
from gateway.call_headers import has_call_headers, with_headers
from gateway.caller import ANYONE, Caller
from gateway.catalogue import Catalogue
from gateway.dispatcher import Accepted, Dispatcher
from gateway.edge import Edge
from gateway.idempotency import Idempotency
from gateway.idempotency_key import HEADER as IDEMPOTENCY_KEY
from gateway.idempotency_key import fingerprint, repeat_of
from gateway.outcomes import Outcomes
from gateway.preferences import NO_PREFERENCES, Preferences, parse_preferences
from gateway.problem import RawHeaders, problem_response
from gateway.raw_body import raw_request
from gateway.request_id import request_id_of
from gateway.standing import document_of, job_path, queued_document
from gateway.traceparent import traceparent_in
from gateway.webhook_submissions import WebhookSubmissions
from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.outcome import Outcome
from schemas.request import InferenceRequest
from schemas.tracing import traceparent_of
from schemas.v2 import HEADER_LENGTH, decode_request, decode_response, encode_response, wants_binary

_log = structlog.get_logger(__name__)

PATH_HEAD = "/v2/models/"
PATH_TAIL = "/infer"
_ROUTE = "/v2/models/{model}/infer"
_VERSIONED_ROUTE = "/v2/models/{model}/versions/{version}/infer"

_HEADER_LENGTH = HEADER_LENGTH.encode()
_JSON = (b"content-type", b"application/json")
_OCTETS = (b"content-type", b"application/octet-stream")
_EXPIRED_ANSWER_GRACE_MS = 5_000  # after a deadline, for the worker to say that it has passed
_PATIENCE_S = 0.5  # nobody leaves before; looking costs 3 us

_encode = msgspec.json.Encoder().encode

Answer = tuple[int, RawHeaders, bytes]


class Infer:
    """POST /v2/models/{model}[/versions/{version}]/infer."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        dispatcher: Dispatcher,
        outcomes: Outcomes,
        idempotency: Idempotency,
        webhooks: WebhookSubmissions,
        bodies: Bodies,
        edge: Edge,
        wait_s: float,
    ) -> None:
        self._catalogue = catalogue
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._access = edge.access
        self._edge = edge
        self._webhooks = webhooks
        self._bodies = bodies
        self._idempotency = idempotency
        self._wait_ms = int(wait_s * 1000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Every failure is a problem document."""
        begun_s = time.perf_counter()
        edge, id_ = self._edge, self._dispatcher.next_id()
        sent: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(sent, id_) if b"x-request-id" in sent else id_
        traceparent = traceparent_in(sent)
        span = None
        if edge.tracing is not None:
            span = edge.tracing.serve(scope, sent, _route(scope), sent.get(b"traceparent", b"").decode("latin-1"))
            traceparent = traceparent_of(span).encode()
        held = self._bodies.hold()
        try:
            status, headers, body = await self._answer(scope, receive, sent, held, id_, traceparent.decode())
        except InferenceError as error:
            status, headers, body = problem_response(error, request_id=request_id)
        except Exception as error:  # the last resort of an edge: tell the caller nothing, the log everything
            _log.exception("infer_failed", request_id=request_id)
            hidden = InferenceError(ErrorCode.INTERNAL, f"an unexpected {type(error).__name__}; the log says more")
            status, headers, body = problem_response(hidden, request_id=request_id)
        finally:
            held.release()
        if len(body) >= ENCODE_ABOVE_BYTES and (accepted := sent.get(b"accept-encoding")) is not None:
            body = await _encoded(body, headers, accepted)
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"x-request-id", request_id.encode()))
        headers.append((b"traceparent", traceparent))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        edge.count(status, time.perf_counter() - begun_s)
        if edge.tracing is not None and span is not None:
            edge.tracing.end(span, status, request_id=request_id, model=_model(scope))
        if status >= edge.access_log.from_status:
            edge.log(
                scope,
                sent,
                traceparent=traceparent,
                begun_s=begun_s,
                path=_route(scope),
                model=_model(scope),
                status=status,
                bytes_out=len(body),
                request_id=request_id,
            )

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        sent: dict[bytes, bytes],
        held: Held,
        request_id: str,
        traceparent: str,
    ) -> Answer:
        name, _, version = scope["path"][len(PATH_HEAD) : -len(PATH_TAIL)].partition("/versions/")
        caller = ANYONE
        if not self._access.is_open:
            caller = await self._access.caller(sent)
            scope.setdefault("state", {})["caller"] = caller
            caller.require("infer", name)
        model = self._catalogue.model(name)
        model.metadata.resolve(version)
        preferences = NO_PREFERENCES
        if b"prefer" in sent:
            preferences = parse_preferences(value for key, value in scope["headers"] if key == b"prefer")
        body = await self._bodies.read(receive, sent, held)
        header_length = _header_length(sent)
        request = raw_request(body, model.metadata) if header_length == 0 else decode_request(body, header_length)
        model.metadata.check(request)
        call = self._call(request, preferences, request_id, traceparent, version, sent, caller)
        asked_s = time.monotonic()
        if IDEMPOTENCY_KEY in sent:
            named = fingerprint("infer", name, body, version=version, header_length=header_length)
            repeat = repeat_of(sent, call.caller.tenant, named)
            answer = await self._idempotency.infer(repeat, model, request, call)
        else:
            answer = await self._dispatcher.infer(model, request, call)
        if isinstance(answer, Accepted):
            return _accepted(answer, name, preferences, call.wait_ms)
        if time.monotonic() - asked_s > _PATIENCE_S and _has_left(receive):
            self._outcomes.keep(answer)
        if error := answer.error():
            raise error
        return _succeeded(answer, request, preferences, self._wait_ms)

    def _call(
        self,
        request: InferenceRequest,
        preferences: Preferences,
        request_id: str,
        traceparent: str,
        version: str,
        sent: dict[bytes, bytes],
        caller: Caller,
    ) -> Call:
        wait_ms, detached = self._wait_ms, False
        if preferences is not NO_PREFERENCES:
            wait_ms, detached = preferences.wait_ms(wait_ms), preferences.detached
        parameters, webhook = request.parameters, ""
        if has_call_headers(sent):
            parameters = with_headers(parameters, sent)
            webhook = self._webhooks.of(sent, detached=detached, tenant=caller.tenant)
        if not parameters:
            return Call(request_id, wait_ms, detached, None, traceparent, version, None, 0, 0, webhook, caller)
        clocks, now_ms = clocks_of(parameters), time.time_ns() // 1_000_000
        for budget_ms in (clocks.deadline_ms, clocks.start_ms):
            if budget_ms:
                wait_ms = min(wait_ms, budget_ms + _EXPIRED_ANSWER_GRACE_MS)
        return Call(
            request_id,
            wait_ms,
            detached,
            clocks.deadline(now_ms),
            traceparent,
            version,
            clocks.start_by(now_ms),
            clocks.execution_ms,
            priority_of(parameters),
            webhook,
            caller,
        )


async def _encoded(body: bytes, headers: RawHeaders, accepted: bytes) -> bytes:
    """The body as the caller accepts it; `headers` say so."""
    headers.append((b"vary", b"accept-encoding"))
    encoding = chosen_encoding(accepted, is_json=_OCTETS not in headers)
    if not encoding:
        return body
    headers.append((b"content-encoding", encoding))
    return await encoded(body, encoding)


def _model(scope: Scope) -> str:
    name: str = scope["path"][len(PATH_HEAD) : -len(PATH_TAIL)]
    return name.partition("/versions/")[0]


def _route(scope: Scope) -> str:
    """The pattern of the request's path, for logs and spans."""
    return _VERSIONED_ROUTE if "/versions/" in scope["path"] else _ROUTE


def _header_length(sent: dict[bytes, bytes]) -> int | None:
    text = sent.get(_HEADER_LENGTH)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 12:
        raise invalid(
            f"{HEADER_LENGTH} is no number of bytes",
            field=HEADER_LENGTH,
            value=text.decode("latin-1"),
            remedy="send the length of the JSON part in bytes, or leave the header out when the body is only JSON",
        )
    return int(text)


def _has_left(receive: Receive) -> bool:
    """Whether the caller has gone, without waiting: one step of receive() either ends at once or would wait."""
    step: Any = receive()  # Any: typed as Awaitable, but a coroutine in every ASGI server
    try:
        step.send(None)
    except StopIteration as done:
        return bool(done.value["type"] == "http.disconnect")
    step.close()
    return False


def _accepted(accepted: Accepted, model: str, preferences: Preferences, wait_ms: int) -> Answer:
    headers = [
        _JSON,
        (b"location", job_path(accepted.job_id).encode()),
        (b"retry-after", b"1"),
    ]
    _add_applied(headers, preferences, accepted=True, wait_ms=wait_ms)
    job_id, standing = accepted.job_id, accepted.standing
    document = queued_document(job_id, model) if standing is None else document_of(job_id, standing)
    return 202, headers, _encode(document)


def _succeeded(outcome: Outcome, request: InferenceRequest, preferences: Preferences, wait_ms: int) -> Answer:
    value, header_length = outcome.value, outcome.header_length
    wants_raw = request.parameters.get("binary_data_output") is True and not request.outputs
    if not (wants_raw and header_length is not None):
        response = decode_response(value, header_length)
        value, header_length = encode_response(response, binary=wants_binary(request))
    headers = [_JSON] if header_length is None else [_OCTETS, (_HEADER_LENGTH, b"%d" % header_length)]
    _add_applied(headers, preferences, accepted=False, wait_ms=wait_ms)
    return 200, headers, bytes(value)


def _add_applied(headers: RawHeaders, preferences: Preferences, *, accepted: bool, wait_ms: int) -> None:
    if preferences is NO_PREFERENCES:
        return
    if applied := preferences.applied(accepted=accepted, most_ms=wait_ms):
        headers.append((b"preference-applied", applied))
