"""The pages behind the types of problem documents."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette

from gateway.error_pages import EXPLANATIONS, error_routes
from gateway.problem import problem_of
from schemas.errors import ErrorCode, InferenceError


@pytest.fixture
def http() -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=error_routes()))
    return httpx.AsyncClient(transport=transport, base_url="http://gateway")


def test_every_code_is_explained_and_nothing_else_but_what_routing_answers() -> None:
    assert EXPLANATIONS.keys() == {code.wire for code in ErrorCode} | {"not_found", "method_not_allowed"}


@pytest.mark.parametrize("code", list(ErrorCode))
async def test_the_type_of_a_problem_leads_to_its_page(http: httpx.AsyncClient, code: ErrorCode) -> None:
    response = await http.get(problem_of(InferenceError(code, "")).type)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert str(code.http_status) in response.text
    assert ("may succeed later" in response.text) is code.retryable
    assert f'href="/errors/{code.wire}"' in (await http.get("/errors")).text


async def test_an_unknown_code_is_no_page(http: httpx.AsyncClient) -> None:
    response = await http.get("/errors/<script>")
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
