"""What every answer carries and leaves behind, on routes of a small application."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from structlog.testing import LogCapture

from gateway.access import Access
from gateway.access_log import AccessLog
from gateway.app import _on_crash, _on_error, _on_routing_error
from gateway.caller import Caller
from gateway.edge import Edge
from gateway.request_id import request_id_of
from gateway.traceparent import traceparent_in
from schemas.errors import ErrorCode, InferenceError
from schemas.tracing import is_sampled, is_wanted, parent_context, span_context

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def answer(request: Request) -> Response:
    return Response("hello")


async def fail(request: Request) -> Response:
    raise InferenceError(ErrorCode.UNAVAILABLE, "not now")


async def crash(request: Request) -> Response:
    raise RuntimeError("secret")


async def stream(request: Request) -> Response:
    async def parts() -> Any:
        yield b"12"
        yield b"345"

    return StreamingResponse(parts())


ROUTES = [
    Route("/models/{model}", answer, methods=["GET"]),
    Route("/fail", fail),
    Route("/crash", crash),
    Route("/stream", stream),
]


def recorded() -> tuple[Any, list[Any]]:
    """A logger for AccessLog, and the lines that it is given."""
    capture = LogCapture()
    return structlog.wrap_logger(None, processors=[capture]), capture.entries


def http_of(level: str, logger: Any = None) -> httpx.AsyncClient:
    handlers: Any = {InferenceError: _on_error, HTTPException: _on_routing_error, Exception: _on_crash}
    edge = Edge(
        next_id=lambda: "own-1",
        access=Access(),
        count=lambda status, seconds: None,
        access_log=AccessLog(level, logger=logger),
        tracing=None,
    )
    app: Any = edge.around(Starlette(routes=ROUTES, exception_handlers=handlers), ROUTES)

    async def identified(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"caller": Caller("acme", "robot")}
        await app(scope, receive, send)

    transport = httpx.ASGITransport(identified, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


@pytest.mark.parametrize("path", ["/models/m", "/fail", "/crash", "/stream", "/nowhere"])
async def test_every_answer_carries_a_request_id_and_the_trace(path: str) -> None:
    async with http_of("none") as http:
        mine = await http.get(path, headers={"x-request-id": "mine/1", "traceparent": TRACE})
        own = await http.get(path)
    assert (mine.headers["x-request-id"], mine.headers["traceparent"]) == ("mine/1", TRACE)
    assert own.headers["x-request-id"] == "own-1"
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", own.headers["traceparent"])
    if mine.status_code >= 400:
        assert mine.json()["request_id"] == "mine/1"
        assert own.json()["request_id"] == "own-1"
        assert "secret" not in mine.text


@pytest.mark.parametrize("sent", ["", "with space", "a\tb", "ü", "x" * 129])
def test_a_request_id_that_cannot_be_given_back_is_replaced(sent: str) -> None:
    assert request_id_of({b"x-request-id": sent.encode()}, "own") == "own"


@given(st.binary())
def test_whatever_is_sent_the_headers_of_the_answer_are_well_formed(sent: bytes) -> None:
    assert re.fullmatch(r"[!-~]{1,128}", request_id_of({b"x-request-id": sent}, "own"))
    assert re.fullmatch(rb"[0-9a-f-]{55}", traceparent_in({b"traceparent": sent}))


@given(st.text())
def test_whatever_a_record_carries_reading_its_trace_never_fails(text: str) -> None:
    is_sampled(text)
    span_context(text)
    parent_context(text)


async def test_a_line_per_answer_says_who_asked_for_what_and_how_it_ended() -> None:
    headers = {"x-request-id": "r", "traceparent": TRACE, "authorization": "Bearer secret"}
    logger, accesses = recorded()
    async with http_of("all", logger) as http:
        await http.get("/models/m?key=secret", headers=headers)
        await http.get("/stream")
        await http.post("/models/m", content=b"12345")
        await http.get("/made-up/secret")
    first = accesses[0]
    assert first.pop("duration_ms") >= 0
    assert first == {
        "event": "access",
        "log_level": "info",
        "method": "GET",
        "path": "/models/{model}",
        "model": "m",
        "status": 200,
        "bytes_in": None,
        "bytes_out": 5,
        "request_id": "r",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "caller": "robot",
        "tenant": "acme",
    }
    told = [(line["path"], line["status"], line["bytes_in"], line["bytes_out"] > 0) for line in accesses[1:]]
    assert told == [("/stream", 200, None, True), ("/models/{model}", 405, 5, True), ("", 404, None, True)]
    assert accesses[1]["bytes_out"] == 5
    assert "secret" not in str(accesses)


async def test_by_default_only_what_failed_is_written() -> None:
    logger, lines = recorded()
    async with http_of("errors", logger) as http:
        for path in ("/models/m", "/nowhere", "/fail", "/crash"):
            await http.get(path)
    assert [(line["path"], line["status"]) for line in lines] == [("/fail", 503), ("/crash", 500)]


def test_a_flood_of_errors_is_cut_and_counted() -> None:
    now_s = 10.0
    logger, lines = recorded()
    log = AccessLog("errors", now_s=lambda: now_s, logger=logger)
    for _ in range(50):
        log.write(status=503)
    now_s = 11.0
    log.write(status=503)
    log.write(status=503)
    assert len(lines) == 22
    assert [line.get("left_out") for line in lines[-2:]] == [30, None]
    logger, lines = recorded()
    unlimited = AccessLog("all", now_s=lambda: now_s, logger=logger)
    for _ in range(50):
        unlimited.write(status=503)
    assert len(lines) == 50


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, False),
    ],
)
def test_spans_are_made_where_the_environment_asks_for_them(environment: dict[str, str], wanted: bool) -> None:
    assert is_wanted(environment) is wanted
