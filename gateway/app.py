"""App: the ASGI application. Sends inference past the router, everything else to routes. Knows no logic."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access_check import AccessCheck
from gateway.byte_budget import ByteBudget
from gateway.counted_bodies import CountedBodies
from gateway.edge import Edge
from gateway.error_pages import error_routes
from gateway.infer import PATH_HEAD, PATH_TAIL, Infer
from gateway.metrics import Metrics
from gateway.openapi import documentation_routes
from gateway.problem import RawHeaders, problem_response, routing_problem
from schemas.errors import ErrorCode, InferenceError

_log = structlog.get_logger(__name__)


def make_app(
    *,
    infer: Infer,
    routes: list[Route],
    metrics: Metrics,
    edge: Edge,
    management_routes: Sequence[Route] = (),
    open_paths: Sequence[str] = (),
    budget: ByteBudget | None = None,
) -> ASGIApp:
    """The application of these parts. Inference asks for access and room itself; without `budget` none is counted.

    `management_routes` are described beside the others, and mounted elsewhere.
    """

    async def get_metrics(request: Request) -> Response:
        return Response(metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def post_infer(request: Request) -> Response:
        raise AssertionError("this is a bug: inference goes past the router")

    # Here so that other methods on these paths are answered 405.
    infer_paths = [f"{PATH_HEAD}{{model}}{PATH_TAIL}", f"{PATH_HEAD}{{model}}/versions/{{version}}{PATH_TAIL}"]
    told = [
        *routes,
        *(Route(path, post_infer, methods=["POST"]) for path in infer_paths),
        Route("/metrics", get_metrics, methods=["GET"]),
        *error_routes(),
    ]
    mounted = [*told, *documentation_routes(told, management=management_routes)]
    router: ASGIApp = make_router(mounted)
    if budget is not None:
        router = CountedBodies(router, budget=budget)
    routed = edge.around(AccessCheck(router, access=edge.access, open_paths=open_paths), mounted)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if scope["method"] == "POST" and path.endswith(PATH_TAIL) and path.startswith(PATH_HEAD):
            await infer(scope, receive, send)
        else:
            await routed(scope, receive, send)

    return app


def make_router(routes: list[Route]) -> ASGIApp:
    """Routes whose every failure is answered with a problem document."""
    return Starlette(
        routes=routes,
        exception_handlers={
            InferenceError: _on_error,
            HTTPException: _on_routing_error,
            ClientDisconnect: _on_left,
            Exception: _on_crash,
        },
    )


async def _on_left(request: Request, error: Exception) -> Response:
    """Nobody reads the answer; but nothing has crashed either."""
    status, headers, body = problem_response(InferenceError(ErrorCode.CANCELLED, "the caller left"))
    return _response(status, headers, body)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, InferenceError)  # registered for these
    status, headers, body = problem_response(error, request_id=_request_id(request))
    return _response(status, headers, body)


async def _on_routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # registered for these
    headers, body = routing_problem(error.status_code, request_id=_request_id(request))
    headers.extend((name.encode(), value.encode()) for name, value in (error.headers or {}).items())
    return _response(error.status_code, headers, body)


async def _on_crash(request: Request, error: Exception) -> Response:
    request_id = _request_id(request)
    _log.error("route_failed", path=request.url.path, request_id=request_id, exc_info=error)
    hidden = InferenceError(ErrorCode.INTERNAL, f"an unexpected {type(error).__name__}; the log says more")
    status, headers, body = problem_response(hidden, request_id=request_id)
    return _response(status, headers, body)


def _request_id(request: Request) -> str:
    found: str = request.scope.get("state", {}).get("request_id", "")
    return found


def _response(status: int, headers: RawHeaders, body: bytes) -> Response:
    return Response(body, status, {name.decode(): value.decode() for name, value in headers})
