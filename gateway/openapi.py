"""OpenApi: the OpenAPI 3.1 document of the routes that are mounted, as JSON and as a page.

What is said of each route is in the tables gateway/openapi_*.py. A route without an entry there shows with its path
only; a test keeps that from happening. Knows no logic of any route.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import openapi_inference, openapi_jobs, openapi_operators
from gateway.docs_page import docs_page
from gateway.models import server_version
from gateway.openapi_components import component_headers, component_parameters, security_schemes
from gateway.openapi_operation import Answer, Operation
from gateway.openapi_schemas import component_schemas

_log = structlog.get_logger(__name__)

OPERATIONS: dict[tuple[str, str], Operation] = {
    (operation.method, operation.path): operation
    for table in (openapi_inference, openapi_jobs, openapi_operators)
    for operation in table.OPERATIONS
}
_CONVERTER = re.compile(r"\{(\w+):\w+\}")
_TAGS = {
    "Inference": "Run requests and wait, or have a job made of them.",
    "Jobs": "Look at jobs and fetch their results.",
    "Models": "What models take, give and have done.",
    "Repository": "List, load and unload models.",
    "Server": "The gateway itself.",
    "Operating": "For autoscalers, monitoring and whoever is on call.",
    "For people": "Pages.",
}
_ABOUT = """\
Serverless inference on Kafka: a request becomes a durable record before it is acknowledged, workers run it in batches,
and its answer comes back here. The Open Inference Protocol v2 is spoken as its clients expect it.

Errors are problem documents (RFC 9457): `code` tells programs what it is, `detail` people, `field`, `value` and
`remedy` say what to correct, `retryable` whether to come again, `type` leads to a page. Every answer carries
`x-request-id`, yours if you sent one, and `traceparent`.
"""


def mounted(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """(method, path as OpenAPI writes it) of each route; HEAD goes with GET and is not told apart."""
    for route in routes:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield method, _CONVERTER.sub(r"{\1}", route.path)


def openapi_document(routes: Iterable[Any], management: Iterable[Any] = ()) -> dict[str, Any]:
    """The document of these Starlette routes, and of those that are on the management port."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path in mounted(routes):
        paths.setdefault(path, {})[method.lower()] = _operation(method, path)
    for method, path in mounted(management):
        operation = paths.setdefault(path, {})[method.lower()] = _operation(method, path)
        operation["description"] += "\n\nOn the management port."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tidegate",
            "version": server_version(),
            "summary": "Inference on Kafka: synchronous requests and durable jobs.",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in _TAGS.items()],
        "security": [{}, *({name: []} for name in security_schemes())],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": component_schemas(),
            "parameters": _used(component_parameters(paths), paths),
            "headers": component_headers(),
            "securitySchemes": security_schemes(),
        },
    }


def documentation_routes(routes: list[Route], management: Iterable[Route] = ()) -> list[Route]:
    """The routes /openapi.json and /docs, about these, those of the management port, and themselves.

    The document is made once, when it is first asked for.
    """
    made: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not made:
            made.update(openapi_document([*routes, *ours], management))
        return made

    async def get_document(request: Request) -> Response:
        return Response(msgspec.json.encode(document()), media_type="application/json")

    async def get_page(request: Request) -> Response:
        return docs_page(document())

    ours = [
        Route("/openapi.json", get_document, methods=["GET"]),
        Route("/docs", get_page, methods=["GET"]),
    ]
    return ours


def _used(parameters: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """Those that an operation refers to."""
    names = {
        parameter["$ref"].rpartition("/")[2]
        for item in paths.values()
        for operation in item.values()
        for parameter in operation["parameters"]
    }
    return {name: parameter for name, parameter in parameters.items() if name in names}


def _operation(method: str, path: str) -> dict[str, Any]:
    operation = OPERATIONS.get((method, path))
    if operation is None:
        _log.warning("route_undocumented", method=method, path=path)
        operation = _undocumented(method, path)
    return operation.document()


def _undocumented(method: str, path: str) -> Operation:
    id_ = re.sub(r"\W+", "_", f"{method.lower()}{path}")
    return Operation(method=method, path=path, id=id_, tag="Server", summary=path, answers={200: Answer("An answer.")})
