"""The OpenAPI document: every mounted route is in it and nothing else, and it is what it says it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette

from gateway.openapi import OPERATIONS, mounted, openapi_document
from gateway.openapi_operation import Operation
from schemas.v2 import decode_request, decode_response
from tests.unit.gateway_app import BuiltGateway


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> BuiltGateway:
    return BuiltGateway(tmp_path_factory.mktemp("store"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def document(service: BuiltGateway) -> dict[str, Any]:
    async with http_of(service) as http:
        response = await http.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    found: dict[str, Any] = response.json()
    return found


class _Route:
    def __init__(self, method: str, path: str) -> None:
        self.methods = frozenset({method})
        self.path = path


def http_of(service: BuiltGateway) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://gateway")


def router_of(service: BuiltGateway) -> Starlette:
    """The Starlette application somewhere inside the gateway's."""
    seen: list[Any] = [service.app]
    while seen:
        part = seen.pop()
        if isinstance(part, Starlette):
            return part
        inner = getattr(part, "__closure__", None) or ()
        seen += [cell.cell_contents for cell in inner if callable(cell.cell_contents)]
        seen += [value for value in getattr(part, "__dict__", {}).values() if callable(value)]
    raise AssertionError("the gateway's application holds no router")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


async def test_every_mounted_route_is_described_and_nothing_else(
    service: BuiltGateway, document: dict[str, Any]
) -> None:
    routes = set(mounted(router_of(service).routes))
    managed = set(mounted(service.management_routes))
    assert {(method, path) for method, path, _ in operations(document)} == routes | managed
    assert routes | managed <= OPERATIONS.keys(), "a route has no entry in gateway/openapi_*.py"
    assert OPERATIONS.keys() == routes | managed, "what gateway/openapi_*.py describes is not mounted"
    assert {path for _, path in managed - routes} == {
        f"/v2/repository{repository}/models/{{model}}/{operation}"
        for repository in ("", "/{repository}")
        for operation in ("load", "unload")
    }


async def test_it_is_a_valid_openapi_document(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    tags = {tag["name"] for tag in document["tags"]}
    assert all(set(operation["tags"]) <= tags for _, _, operation in operations(document))


def contents(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for method, path, operation in operations(document):
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            yield f"{method} {path} {media_type}", content
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                yield f"{method} {path} {status} {media_type}", content


async def test_every_example_fits_its_schema(document: dict[str, Any]) -> None:
    count = 0
    for where, content in contents(document):
        # The references of a schema lead into the whole document.
        validator = Draft202012Validator({**content["schema"], "components": document["components"]})
        for name, example in content.get("examples", {}).items():
            assert [error.message for error in validator.iter_errors(example["value"])] == [], (where, name)
            count += 1
    assert count > 100


async def test_every_operation_with_json_has_an_example(document: dict[str, Any]) -> None:
    bare = {
        where
        for where, content in contents(document)
        if where.endswith("json") and not content.get("examples") and "ref" in str(content["schema"])
    }
    assert bare <= {"GET /errors/{code} 404 application/problem+json"}


async def test_every_header_and_parameter_is_used(document: dict[str, Any]) -> None:
    text = msgspec.json.encode(document["paths"]).decode()
    for name in document["components"]["headers"]:
        assert f'"#/components/headers/{name}"' in text, name
    unused = {name for name in document["components"]["parameters"] if f'"#/components/parameters/{name}"' not in text}
    assert unused == set()


async def test_the_protocol_s_examples_are_what_the_codec_reads(document: dict[str, Any]) -> None:
    infer = document["paths"]["/v2/models/{model}/infer"]["post"]
    for example in infer["requestBody"]["content"]["application/json"]["examples"].values():
        decode_request(msgspec.json.encode(example["value"]))
    for example in infer["responses"]["200"]["content"]["application/json"]["examples"].values():
        decode_response(msgspec.json.encode(example["value"]))


async def test_what_is_described_ahead_is_a_valid_document_with_valid_examples_too() -> None:
    found = openapi_document([_Route(method, path) for method, path in OPERATIONS])
    assert [error.message for error in OpenAPIV31SpecValidator(found).iter_errors()] == []
    await test_every_example_fits_its_schema(found)


async def test_a_route_without_an_entry_shows_nevertheless(service: BuiltGateway) -> None:
    found = openapi_document([_Route("GET", "/new/{name:path}")], management=[_Route("GET", "/new/{name:path}")])
    assert "On the management port" in found["paths"]["/new/{name}"]["get"]["description"]


async def test_the_page_shows_every_operation_and_fetches_nothing(
    service: BuiltGateway, document: dict[str, Any]
) -> None:
    async with http_of(service) as http:
        response = await http.get("/docs")
    assert response.headers["content-type"].startswith("text/html")
    for _, _, operation in operations(document):
        assert f'id="{operation["operationId"]}"' in response.text
    assert re.findall(r'(?:src|href)="?(?:https?:)?//', response.text) == []
    assert "<script" not in response.text


def test_the_table_is_keyed_by_what_it_says() -> None:
    assert all(isinstance(operation, Operation) for operation in OPERATIONS.values())
