"""The gateway's gRPC side, judged by the protocol's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton

from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import ROW
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


@pytest_asyncio.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[Any]:
    async with triton.InferenceServerClient(gateway.grpc) as client:
        yield client


def row_input() -> Any:
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([ROW], np.float32))
    return tensor


async def test_infer(client: Any, worker: EchoWorker) -> None:
    call = asyncio.ensure_future(client.infer(worker.model, [row_input()], request_id="mine"))
    await worker.reply(await worker.take())
    result = await call
    assert result.as_numpy("x").tolist() == [ROW]
    assert result.get_response().id == "mine"
    assert await client.is_server_live()
