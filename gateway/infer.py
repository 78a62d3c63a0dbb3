"""Infer: the hot route, from an HTTP request to an HTTP response. Plain ASGI, for each microsecond is paid per request.

Must not know Kafka.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from gateway.body import ENCODE_ABOVE_BYTES, chosen_encoding, encoded, read_body
from gateway.call import Call, clocks_of, priority_of
from gateway.catalogue import Catalogue
from gateway.dispatcher import Accepted, Dispatcher
from gateway.edge import Edge, request_id_of, traceparent_in
from gateway.jobs import job_path, queued_document
from gateway.metrics import Metrics
from gateway.outcomes import Outcomes
from gateway.problem import RawHeaders, problem_response
from gateway.raw_body import raw_request
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
_WAIT = re.compile(r'wait="?([0-9]{1,9})"?')

Answer = tuple[int, RawHeaders, bytes]


class Preferences(msgspec.Struct, frozen=True):
    """What of RFC 7240 we honour: respond-async, and wait in seconds."""

    respond_async: bool = False
    wait_s: int | None = None

    def applied(self, *, accepted: bool) -> bytes:
        """The Preference-Applied header; empty when there is nothing to say."""
        parts = []
        if self.respond_async and accepted:
            parts.append("respond-async")
        if self.wait_s is not None:
            parts.append(f"wait={self.wait_s}")
        return ", ".join(parts).encode()


_NO_PREFERENCES = Preferences()


def parse_preferences(values: Iterable[bytes]) -> Preferences:
    """Read Prefer headers; what is unknown or malformed is ignored, as the RFC wants."""
    respond_async, wait_s = False, None
    for token in b",".join(values).decode("latin-1").lower().split(","):
        preference = token.partition(";")[0].strip()
        if preference == "respond-async":
            respond_async = True
        elif wait_s is None and (match := _WAIT.fullmatch(preference)):
            wait_s = int(match[1])
    return Preferences(respond_async, wait_s)


class Infer:
    """POST /v2/models/{model}[/versions/{version}]/infer."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        dispatcher: Dispatcher,
        outcomes: Outcomes,
        metrics: Metrics,
        edge: Edge,
        wait_s: float,
        max_body_bytes: int,
    ) -> None:
        self._catalogue = catalogue
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._wait_ms = int(wait_s * 1000)
        self._max_body_bytes = max_body_bytes
        self._count = metrics.responses.add
        self._edge = edge

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
        try:
            status, headers, body = await self._answer(scope, receive, sent, id_, traceparent.decode())
        except InferenceError as error:
            status, headers, body = problem_response(error, request_id=request_id)
        except Exception as error:  # the last resort of an edge: tell the caller nothing, the log everything
            _log.exception("infer_failed", request_id=request_id)
            hidden = InferenceError(ErrorCode.INTERNAL, f"an unexpected {type(error).__name__}; the log says more")
            status, headers, body = problem_response(hidden, request_id=request_id)
        if len(body) >= ENCODE_ABOVE_BYTES and (accepted := sent.get(b"accept-encoding")) is not None:
            if encoding := chosen_encoding(accepted, is_json=_OCTETS not in headers):
                body = await encoded(body, encoding)
                headers.append((b"content-encoding", encoding))
            headers.append((b"vary", b"accept-encoding"))
        headers.append((b"content-length", b"%d" % len(body)))
        headers.append((b"x-request-id", request_id.encode()))
        headers.append((b"traceparent", traceparent))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._count(status, time.perf_counter() - begun_s)
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
        self, scope: Scope, receive: Receive, sent: dict[bytes, bytes], request_id: str, traceparent: str
    ) -> Answer:
        name, _, version = scope["path"][len(PATH_HEAD) : -len(PATH_TAIL)].partition("/versions/")
        model = self._catalogue.model(name)
        model.metadata.resolve(version)
        preferences = _NO_PREFERENCES
        if b"prefer" in sent:
            preferences = parse_preferences(value for key, value in scope["headers"] if key == b"prefer")
        body = await read_body(receive, sent, self._max_body_bytes)
        header_length = _header_length(sent)
        request = raw_request(body, model.metadata) if header_length == 0 else decode_request(body, header_length)
        model.metadata.check(request)
        call = self._call(request, preferences, request_id, traceparent, version)
        asked_s = time.monotonic()
        answer = await self._dispatcher.infer(model, request, call)
        if isinstance(answer, Accepted):
            return _accepted(answer, name, preferences)
        if self._edge.tracing is not None:
            self._edge.tracing.received("replies", traceparent, answer)
        if time.monotonic() - asked_s > _PATIENCE_S and _has_left(receive):
            self._outcomes.keep(answer)
        if error := answer.error():
            raise error
        return _succeeded(answer, request, preferences)

    def _call(
        self, request: InferenceRequest, preferences: Preferences, request_id: str, traceparent: str, version: str
    ) -> Call:
        wait_ms = self._wait_ms
        if preferences.wait_s is not None:
            wait_ms = min(wait_ms, preferences.wait_s * 1000)
        detached = preferences.respond_async and preferences.wait_s is None
        parameters = request.parameters
        if not parameters:
            return Call(request_id, wait_ms, detached, None, traceparent, version)
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
        )


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


def _accepted(accepted: Accepted, model: str, preferences: Preferences) -> Answer:
    headers = [
        _JSON,
        (b"location", job_path(accepted.job_id).encode()),
        (b"retry-after", b"1"),
    ]
    _add_applied(headers, preferences, accepted=True)
    return 202, headers, msgspec.json.encode(queued_document(accepted.job_id, model))


def _succeeded(outcome: Outcome, request: InferenceRequest, preferences: Preferences) -> Answer:
    value, header_length = outcome.value, outcome.header_length
    wants_raw = request.parameters.get("binary_data_output") is True and not request.outputs
    if not (wants_raw and header_length is not None):
        response = decode_response(value, header_length)
        value, header_length = encode_response(response, binary=wants_binary(request))
    headers = [_JSON] if header_length is None else [_OCTETS, (_HEADER_LENGTH, b"%d" % header_length)]
    _add_applied(headers, preferences, accepted=False)
    return 200, headers, bytes(value)


def _add_applied(headers: RawHeaders, preferences: Preferences, *, accepted: bool) -> None:
    if preferences is not _NO_PREFERENCES and (applied := preferences.applied(accepted=accepted)):
        headers.append((b"preference-applied", applied))
