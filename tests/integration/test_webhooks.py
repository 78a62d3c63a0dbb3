"""Webhooks from submission to receiver: real gateway, real deliverer, real Kafka, a real HTTP server as receiver."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from local.kafka import LocalKafka
from schemas.errors import ErrorCode, InferenceError
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import BODY, ROW, path, worker_of
from tests.integration.gateway_process import GatewayProcess
from tests.integration.webhook_calls import SECRET, SETTINGS, WebhookProcess, deliverer, ended, stands, verified
from tests.integration.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def gateway(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    store = tmp_path_factory.mktemp("store")
    process = GatewayProcess(bootstrap=kafka.bootstrap, prefix=f"t{uuid.uuid4().hex[:6]}", store=store, **SETTINGS)
    with process:
        yield process.ready()


@pytest.fixture(scope="module")
def webhooks(kafka: LocalKafka, gateway: GatewayProcess) -> Iterator[WebhookProcess]:
    with deliverer(kafka.bootstrap, gateway) as process:
        yield process.joined()


@pytest_asyncio.fixture
async def http(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


@pytest_asyncio.fixture
async def worker(kafka: LocalKafka, gateway: GatewayProcess) -> AsyncIterator[EchoWorker]:
    async with worker_of(kafka.bootstrap, gateway) as echo:
        yield echo


async def test_the_end_of_a_job_is_told_and_signed(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, webhooks: WebhookProcess
) -> None:
    with WebhookReceiver() as receiver:
        job, _ = await ended(http, worker, gateway, receiver.url("/hook?token=t0ken"))
        (received,) = await receiver.got()
        message = verified(SECRET, received)
        document = await stands(http, job, "delivered")
    assert message["type"] == "job.succeeded"
    data = message["data"]
    assert f"/v1/jobs/{data['id']}" == job
    assert (data["model"], data["state"]) == (worker.model, "succeeded")
    assert data["result"]["outputs"][0]["data"] == ROW
    assert data["links"]["result"] == f"{job}/result"
    assert message["timestamp"] == data["finished_at"]
    assert received.headers["webhook-id"] == data["id"]
    assert (document["attempts"], document["last_status"]) == (1, 204)
    assert (await http.get(job)).json()["state"] == "succeeded"
    assert not [line for line in webhooks.text() if "t0ken" in line or SECRET in line]
