"""Damaged gRPC requests: each is answered, none by an internal error, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from msgspec import structs

from schemas.model import TensorSpec
from tests.benchmarks.grpc_mutations import damaged_messages
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_process import GatewayProcess
from tests.integration.grpc_calls import bare, failed, streaming

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

CASES = 600
CALLERS = 8
FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE}


@contextlib.asynccontextmanager
async def serving(worker: EchoWorker, gateway: GatewayProcess) -> AsyncIterator[None]:
    """Let the worker answer for itself, with the model that the damaged requests are for."""
    metadata = structs.replace(
        worker.announcement.metadata,
        max_batch_size=64,
        inputs=(TensorSpec("INPUT0", "FP32", (16,)),),
        outputs=(TensorSpec("OUTPUT0", "FP32", (16,)),),
        platform="fuzz",
    )
    worker.announcement = structs.replace(worker.announcement, metadata=metadata)
    await worker.announce()
    async with gateway.client() as http:
        while (await http.get(f"/v2/models/{worker.model}")).json()["platform"] != "fuzz":
            pass
    echo = asyncio.ensure_future(worker.serve())
    yield
    echo.cancel()
    await asyncio.gather(echo, return_exceptions=True)


def test_the_same_seed_makes_the_same_messages() -> None:
    first, second = (list(itertools.islice(damaged_messages(7, "m"), 50)) for _ in range(2))
    assert first == second
    assert first != list(itertools.islice(damaged_messages(8, "m"), 50))


async def test_damaged_requests_get_an_answer_or_an_error_of_the_caller(
    gateway: GatewayProcess, worker: EchoWorker, http: httpx.AsyncClient
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    bodies = itertools.islice(damaged_messages(seed, worker.model), CASES)
    codes: Counter[Any] = Counter()
    faults: list[Any] = []
    async with serving(worker, gateway), grpc.aio.insecure_channel(gateway.grpc) as channel:
        call = bare(channel, "ModelInfer")

        async def caller() -> None:
            for body in bodies:
                try:
                    await call(body, timeout=20)
                    codes[grpc.StatusCode.OK] += 1
                except grpc.aio.AioRpcError as error:
                    codes[error.code()] += 1
                    if error.code() in FAULTS:
                        faults.append((body, error))

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        assert faults == [], seed
        assert codes.total() == CASES
        assert codes[grpc.StatusCode.OK] > CASES // 10
        assert codes[grpc.StatusCode.INVALID_ARGUMENT] > CASES // 4
        for method in (
            "ModelReady",
            "ModelMetadata",
            "ModelConfig",
            "ModelStatistics",
            "RepositoryIndex",
        ):
            code, _, _ = await failed(bare(channel, method)(b"\x0a\xff"))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, method
    metrics = (await http.get("/metrics")).text
    assert "tidegate_gateway_in_flight 0.0" in metrics


async def test_damaged_requests_in_a_stream_do_not_end_it(gateway: GatewayProcess, worker: EchoWorker) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    async with serving(worker, gateway), grpc.aio.insecure_channel(gateway.grpc) as channel:
        stream = streaming(channel)(timeout=60)
        for body in itertools.islice(damaged_messages(seed, worker.model), 100):
            await stream.write(body)
            assert b"internal" not in await stream.read(), (seed, body)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
