"""How the gateway's tests call it: the settings and requests that they share, and a worker that it knows."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import Any

import httpx
from aiokafka import TopicPartition

from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from tests.integration.echo_worker import PARTITIONS, EchoWorker, Taken
from tests.integration.gateway_process import GatewayProcess

MAX_IN_FLIGHT = 12
MAX_BODY_BYTES = 1_000_000
CLAIM_ABOVE_BYTES = 100_000
ROW = [1.0, 2.5, -3.0, 0.0]
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}], "id": "mine"}


def worker_of(bootstrap: str, *gateways: GatewayProcess) -> Any:
    """A context manager: a worker whose model these gateways know."""

    class Known(AsyncExitStack):
        async def __aenter__(self) -> EchoWorker:  # type: ignore[override]  # a context of something else
            prefix = gateways[0].prefix
            model = f"m{uuid.uuid4().hex[:6]}"
            echo: EchoWorker = await self.enter_async_context(
                EchoWorker(bootstrap=bootstrap, prefix=prefix, model=model)
            )
            await echo.announce()
            for gateway in gateways:
                await asyncio.to_thread(gateway.logged, "learn_model", model=model)
            return echo

    return Known()


def path(worker: EchoWorker) -> str:
    return f"/v2/models/{worker.model}/infer"


def row_request(*, binary: bool = False) -> InferenceRequest:
    parameters = {"binary_data_output": True} if binary else {}
    return InferenceRequest((tensor_from_list("x", "FP32", (1, 4), ROW),), (), "mine", parameters)


async def answered(worker: EchoWorker, call: Any) -> tuple[httpx.Response, Taken]:
    """Let the worker answer the one request that this call makes."""
    response = asyncio.ensure_future(call)
    taken = await worker.take()
    await worker.reply(taken)
    return await response, taken


async def records_in(worker: EchoWorker) -> int:
    places = [TopicPartition(worker.topic, partition) for partition in range(PARTITIONS)]
    return sum((await worker.consumer.end_offsets(places)).values())
