"""What the gateway says to a webhook at submission."""

from __future__ import annotations

import uuid
from pathlib import Path

import httpx
import pytest

from local.kafka import LocalKafka
from schemas.record import WEBHOOK_HEADER
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import BODY, path, worker_of
from tests.integration.gateway_process import GatewayProcess
from tests.integration.webhook_calls import SECRET

pytest_plugins = ["tests.integration.webhook_fixtures"]
pytestmark = pytest.mark.kafka

PUBLIC = "https://hooks.example.com/a?b=c"


async def test_a_webhook_travels_with_the_request(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async", WEBHOOK_HEADER: PUBLIC})
    assert accepted.status_code == 202
    assert (await worker.take()).envelope.webhook == PUBLIC


@pytest.mark.parametrize("prefer", [None, "wait=5", "respond-async, wait=5"])
async def test_a_synchronous_request_has_no_webhook(
    http: httpx.AsyncClient, worker: EchoWorker, prefer: str | None
) -> None:
    headers = {WEBHOOK_HEADER: PUBLIC} | ({"prefer": prefer} if prefer else {})
    refused = await http.post(path(worker), json=BODY, headers=headers)
    problem = refused.json()
    assert (refused.status_code, problem["field"]) == (400, WEBHOOK_HEADER)
    assert "respond-async" in problem["remedy"]


@pytest.mark.parametrize(
    "url",
    ["https://10.0.0.1/", "ftp://example.com/", "https://me:pw@example.com/", "https://", "no url", "https://[::1/"],
)
async def test_a_webhook_that_could_not_be_called_is_refused_at_once(
    http: httpx.AsyncClient, worker: EchoWorker, url: str
) -> None:
    refused = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async", WEBHOOK_HEADER: url})
    problem = refused.json()
    assert (refused.status_code, problem["field"], problem["code"]) == (400, WEBHOOK_HEADER, "invalid_request")
    assert "pw@" not in refused.text


async def test_without_a_secret_webhooks_are_refused_and_nobody_delivers(kafka: LocalKafka, tmp_path: Path) -> None:
    prefix = f"t{uuid.uuid4().hex[:6]}"
    with GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path) as gateway:
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as worker, gateway.client() as http:
            headers = {"prefer": "respond-async", WEBHOOK_HEADER: PUBLIC}
            refused = await http.post(path(worker), json=BODY, headers=headers)
            assert (refused.status_code, "TIDEGATE_WEBHOOK_SECRETS" in refused.json()["remedy"]) == (400, True)


async def test_by_default_neither_http_nor_loopback_is_called(kafka: LocalKafka, tmp_path: Path) -> None:
    prefix = f"t{uuid.uuid4().hex[:6]}"
    with GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path, webhook_secrets=SECRET) as gateway:
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as worker, gateway.client() as http:
            for url in ("http://example.com/", "https://127.0.0.1/", "https://localhost/", "https://2130706433/"):
                headers = {"prefer": "respond-async", WEBHOOK_HEADER: url}
                assert (await http.post(path(worker), json=BODY, headers=headers)).status_code == 400, url
