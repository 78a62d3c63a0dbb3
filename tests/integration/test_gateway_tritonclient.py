"""The HTTP protocol as its own client judges it: tritonclient, synchronous and asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.http.aio import InferenceServerClient as AioClient
from tritonclient.utils import InferenceServerException

from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

ROWS = np.array([[1.0, 2.5, -3.0, 0.0], [4.0, 5.0, 6.0, 7.0]], dtype=np.float32)


@pytest_asyncio.fixture
async def served(worker: EchoWorker) -> AsyncIterator[EchoWorker]:
    """The worker, answering whatever comes."""
    serving = asyncio.ensure_future(worker.serve())
    yield worker
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest_asyncio.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[AioClient]:
    async with AioClient(gateway.url.removeprefix("http://")) as aio:
        yield aio


def inputs(*, binary: bool = True) -> list[InferInput]:
    tensor = InferInput("x", list(ROWS.shape), "FP32")
    tensor.set_data_from_numpy(ROWS, binary_data=binary)
    return [tensor]


async def test_health_and_metadata(client: AioClient, served: EchoWorker) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(served.model)
    assert await client.is_model_ready(served.model, "1")
    assert not await client.is_model_ready(served.model, "9")
    assert "binary_tensor_data" in (await client.get_server_metadata())["extensions"]
    assert (await client.get_model_metadata(served.model))["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    ]
    index = await client.get_model_repository_index()
    assert served.model in {each["name"] for each in index}
    stats = await client.get_inference_statistics(served.model)
    assert {each["version"] for each in stats["model_stats"]} == {"1", "2"}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
async def test_inference_in_every_form(
    client: AioClient, served: EchoWorker, binary_in: bool, binary_out: bool, compression: str | None
) -> None:
    result = await client.infer(
        served.model,
        inputs(binary=binary_in),
        outputs=[InferRequestedOutput("x", binary_data=binary_out)],
        request_id="mine",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert np.array_equal(result.as_numpy("x"), ROWS)
    assert result.get_response()["id"] == "mine"


async def test_a_large_answer_is_compressed_for_who_asks(client: AioClient, served: EchoWorker) -> None:
    rows = np.zeros((8, 4), dtype=np.float32)
    tensor = InferInput("x", [8, 4], "FP32")
    tensor.set_data_from_numpy(rows, binary_data=False)
    result = await client.infer(
        served.model,
        [tensor],
        outputs=[InferRequestedOutput("x", binary_data=False)],
        request_id="i" * 8000,
        response_compression_algorithm="gzip",
    )
    assert np.array_equal(result.as_numpy("x"), rows)


async def test_priority_timeout_and_own_parameters_pass(client: AioClient, served: EchoWorker) -> None:
    result = await client.infer(
        served.model, inputs(), priority=1, timeout=30_000_000, parameters={"mine": "1"}, model_version="1"
    )
    assert result.get_response()["model_version"] == "1"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"model_name": "unknown"}, "404", "there is no model"),
        ({"model_version": "9"}, "404", "no version"),
        ({"outputs": [InferRequestedOutput("nothing")]}, "400", "no output"),
        ({"inputs": []}, "400", "is missing"),
    ],
)
async def test_errors_say_what_is_wrong(
    client: AioClient, served: EchoWorker, change: dict[str, Any], status: str, said: str
) -> None:
    call = {"model_name": served.model, "inputs": inputs()} | change
    with pytest.raises(InferenceServerException) as caught:
        await client.infer(**call)
    assert caught.value.status() == status
    assert said in caught.value.message()


async def test_the_synchronous_client_works_as_well(gateway: GatewayProcess, served: EchoWorker) -> None:
    def call() -> Any:
        with InferenceServerClient(gateway.url.removeprefix("http://"), concurrency=2) as client:
            assert client.is_server_ready()
            waiting = client.async_infer(served.model, inputs())
            direct = client.infer(served.model, inputs(), outputs=[InferRequestedOutput("x", binary_data=True)])
            return direct.as_numpy("x"), waiting.get_result().as_numpy("x")

    for rows in await asyncio.to_thread(call):
        assert np.array_equal(rows, ROWS)


async def test_a_raw_body_is_answered_raw(http: httpx.AsyncClient, served: EchoWorker) -> None:
    answer = await http.post(
        f"/v2/models/{served.model}/infer",
        content=ROWS[:1].tobytes(),
        headers={"Inference-Header-Content-Length": "0", "content-type": "application/octet-stream"},
    )
    assert answer.status_code == 200
    head = int(answer.headers["inference-header-content-length"])
    assert answer.content[head:] == ROWS[:1].tobytes()
    refused = await http.post(
        f"/v2/models/{served.model}/infer", content=b"123", headers={"Inference-Header-Content-Length": "0"}
    )
    assert (refused.status_code, refused.json()["field"]) == (400, "body")
