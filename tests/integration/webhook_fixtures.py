"""Fixtures of the webhooks' tests: a gateway for a module, and a worker of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from local.kafka import LocalKafka
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import worker_of
from tests.integration.gateway_process import GatewayProcess
from tests.integration.webhook_calls import SETTINGS


@pytest.fixture(scope="module")
def gateway(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that takes webhooks and delivers none."""
    store = tmp_path_factory.mktemp("store")
    process = GatewayProcess(bootstrap=kafka.bootstrap, prefix=f"t{uuid.uuid4().hex[:6]}", store=store, **SETTINGS)
    with process:
        yield process.ready()


@pytest_asyncio.fixture
async def http(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


@pytest_asyncio.fixture
async def worker(kafka: LocalKafka, gateway: GatewayProcess) -> AsyncIterator[EchoWorker]:
    """A worker with a model of its own, known to the gateway."""
    async with worker_of(kafka.bootstrap, gateway) as echo:
        yield echo
