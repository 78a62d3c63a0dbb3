"""AccessCheck: what each path needs, what is open, and that a path nobody thought of is not."""

from __future__ import annotations

from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from gateway.access import Access
from gateway.access_check import AccessCheck, need_of
from gateway.api_keys import make_key
from gateway.caller import caller_in
from gateway.settings_access import AccessSettings


@pytest.mark.parametrize(
    ("method", "path", "operation", "model", "some"),
    [
        ("GET", "/v2", "read", "*", True),
        ("GET", "/v2/models/m", "read", "m", False),
        ("GET", "/v2/models/m/versions/3/ready", "read", "m", False),
        ("GET", "/v2/models/m/config", "read", "m", False),
        ("GET", "/v2/models/stats", "read", "*", True),
        ("GET", "/v2/models/stats/stats", "read", "stats", False),
        ("POST", "/v2/models/m/infer", "infer", "m", False),
        ("GET", "/v2/models/m/infer", "read", "m", False),
        ("POST", "/v2/repository/index", "read", "*", True),
        ("POST", "/v2/repository/models/m/load", "manage", "m", False),
        ("POST", "/v2/repository/r/models/m/unload", "manage", "m", False),
        ("POST", "/v2/repository/r/index", "read", "*", True),
        ("POST", "/v1/models/m/jobs", "infer", "m", False),
        ("GET", "/v1/jobs/abc", "jobs", "*", True),
        ("DELETE", "/v1/jobs/abc", "jobs", "*", True),
        ("GET", "/v1/jobs", "jobs", "*", True),
        ("GET", "/scaling/v1/pools/p", "read", "*", False),
        ("POST", "/new/route", "read", "*", False),
        ("GET", "//v2/models/m", "read", "*", False),
    ],
)
def test_what_a_path_needs(method: str, path: str, operation: str, model: str, some: bool) -> None:
    need = need_of(method, path)
    assert (need.operation, need.model, need.some) == (operation, model, some)


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    body = caller_in(scope).name.encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def _client(tmp_path: Path, *scopes: str, manage: bool = False) -> tuple[httpx.AsyncClient, str]:
    key, entry = make_key(name="batch", tenant="acme", scopes=scopes)
    (tmp_path / "keys").write_bytes(msgspec.json.encode({"keys": [entry]}))
    access = Access(keys_file=tmp_path / "keys")
    await access.start()
    app = AccessCheck(_app, access=access, open_paths=AccessSettings().open_paths, manage=manage)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway"), key


async def test_open_paths_need_no_key_and_nothing_beside_them_is_open(tmp_path: Path) -> None:
    client, _ = await _client(tmp_path, "read:m")
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/docs", "/openapi.json"):
        assert (await client.get(path)).text == "anonymous"
    for path in ("/v2", "/v2/health", "/metrics/", "/metricsx", "/docsx", "/status.json", "/scaling/v1/pools/p", "/"):
        assert (await client.get(path)).status_code == 401, path


async def test_answers_say_what_is_missing(tmp_path: Path) -> None:
    client, key = await _client(tmp_path, "read:m*", "jobs:m")
    without = await client.get("/v2/models/m")
    assert without.status_code == 401
    assert without.headers["www-authenticate"].startswith("Bearer")
    assert without.json()["code"] == "unauthenticated"
    client.headers["x-api-key"] = key
    assert (await client.get("/v2/models/m")).text == "batch"
    assert (await client.get("/v1/jobs/abc")).text == "batch"
    denied = await client.get("/v2/models/other")
    assert denied.status_code == 403
    assert "read:other" in denied.json()["remedy"]
    assert (await client.post("/v2/models/m/infer")).status_code == 403
    assert (await client.get("/scaling/v1/pools/p")).status_code == 403  # a pool holds other models too


async def test_the_management_port_takes_nothing_but_the_scope_manage(tmp_path: Path) -> None:
    client, key = await _client(tmp_path, "infer:*", "jobs:*", "read:*", manage=True)
    client.headers["x-api-key"] = key
    assert (await client.post("/v2/repository/models/m/load")).status_code == 403
    assert (await client.get("/v2")).status_code == 403
    client, key = await _client(tmp_path, "manage:m", manage=True)
    client.headers["x-api-key"] = key
    assert (await client.post("/v2/repository/models/m/load")).status_code == 200
    assert (await client.post("/v2/repository/models/other/load")).status_code == 403
