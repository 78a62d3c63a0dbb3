"""Fixtures of the gateway's tests: one gateway for a module, a worker of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from local.kafka import LocalKafka
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import CLAIM_ABOVE_BYTES, MAX_BODY_BYTES, MAX_IN_FLIGHT, worker_of
from tests.integration.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def gateway(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway for all tests that do not stop theirs."""
    process = GatewayProcess(
        bootstrap=kafka.bootstrap,
        prefix=f"t{uuid.uuid4().hex[:6]}",
        store=tmp_path_factory.mktemp("store"),
        max_in_flight=MAX_IN_FLIGHT,
        max_body_bytes=MAX_BODY_BYTES,
        claim_above_bytes=CLAIM_ABOVE_BYTES,
        status_cache_ms=0,
        management_port=0,
    )
    with process:
        yield process.ready()
        assert process.not_json() == []


@pytest_asyncio.fixture
async def http(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


@pytest_asyncio.fixture
async def management(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the management port."""
    async with gateway.management_client() as client:
        yield client


@pytest_asyncio.fixture
async def worker(kafka: LocalKafka, gateway: GatewayProcess) -> AsyncIterator[EchoWorker]:
    """A worker with a model of its own, known to the gateway."""
    async with worker_of(kafka.bootstrap, gateway) as echo:
        yield echo
