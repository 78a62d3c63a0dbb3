"""The client against a real gateway and a real broker; a worker in the test answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import numpy as np
import pytest
import pytest_asyncio

from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import encode_stored, outcome_key
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import ROW, records_in
from tests.integration.gateway_process import GatewayProcess
from tidegate import AsyncClient, Client, InvalidRequestError, JobState, ModelFailedError, NotFoundError, Tensor

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


@pytest_asyncio.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(gateway.url) as client:
        yield client


@pytest.fixture
def waiting(gateway: GatewayProcess) -> Iterator[Client]:
    with Client(gateway.url, binary=False) as client:
        yield client


async def test_raw_tensors_there_and_back(client: AsyncClient, worker: EchoWorker) -> None:
    asked = asyncio.create_task(client.infer(worker.model, {"x": [ROW]}, id="mine", priority=1))
    taken = await worker.take()
    assert taken.envelope.priority == 1
    await worker.reply(taken)
    result = await asked
    assert result["x"] == Tensor.of("FP32", [ROW])
    assert (result.id, result.version, result.request_id) == ("mine", "2", taken.envelope.id)


async def test_json_from_a_thread(waiting: Client, worker: EchoWorker) -> None:
    asked = asyncio.create_task(asyncio.to_thread(waiting.infer, worker.model, {"x": np.array([ROW], np.float32)}))
    await worker.reply(await worker.take())
    assert (await asked)["x"].numpy().tolist() == [ROW]


async def test_a_wait_that_is_spent_goes_on_as_a_job_and_nothing_runs_twice(
    gateway: GatewayProcess, worker: EchoWorker
) -> None:
    handed_over = asyncio.Event()

    async def note(response: httpx.Response) -> None:
        if response.status_code == 202:
            handed_over.set()

    async with httpx.AsyncClient(event_hooks={"response": [note]}) as http:
        client = AsyncClient(gateway.url, http=http)
        asked = asyncio.create_task(client.infer(worker.model, {"x": [ROW]}, timeout_s=20.0))
        await worker.reply(await worker.take())
        await asked
        assert not handed_over.is_set()
        asked = asyncio.create_task(client.infer(worker.model, {"x": [ROW]}, timeout_s=1.9))
        taken = await worker.take()
        await handed_over.wait()  # the gateway's wait is 1 s, as the client asks for whole seconds
        await worker.reply(taken)
        assert (await asked)["x"].tolist() == [ROW]
    assert await records_in(worker) == 2


async def test_jobs_come_as_they_end(client: AsyncClient, worker: EchoWorker, gateway: GatewayProcess) -> None:
    jobs = [await client.submit(worker.model, {"x": [ROW]}) for _ in range(3)]
    assert {(await job.status()).state for job in jobs} == {JobState.QUEUED}
    store = open_store(str(gateway.store))
    failure = InferenceError(ErrorCode.MODEL_FAILED, "it broke")
    by_origin = []
    for number in range(3):
        taken = await worker.take()
        assert taken.envelope.stored
        outcome = worker.outcome(taken, error=failure if number == 2 else None)
        store.put(outcome_key(taken.origin, EPOCH), encode_stored(outcome))
        by_origin.append(outcome)
    ended = [job async for job in client.as_completed(jobs, 20.0)]
    assert {job.id for job in ended} == {job.id for job in jobs}
    assert await client.wait(jobs, 20.0) == (jobs, [])
    states = [(await job.status()).state for job in jobs]
    assert sorted(states) == ["failed", "succeeded", "succeeded"]
    failed = jobs[states.index(JobState.FAILED)]
    with pytest.raises(ModelFailedError, match="it broke"):
        await failed.result()
    others = [job for job in jobs if job is not failed]
    assert [(await job.result())["x"].tolist() for job in others] == [[ROW], [ROW]]


async def test_the_gateway_s_refusals_are_typed(client: AsyncClient, worker: EchoWorker) -> None:
    with pytest.raises(NotFoundError) as missing:
        await client.infer("no-such-model", {"x": Tensor.of("FP32", [ROW])})
    assert (missing.value.code, missing.value.field, missing.value.value) == (
        "model_not_found",
        "model",
        "no-such-model",
    )
    with pytest.raises(InvalidRequestError) as invalid:
        await client.infer(worker.model, {"x": Tensor.of("INT32", [[1, 2, 3, 4]])})
    assert invalid.value.remedy == "send FP32"
    with pytest.raises(NotFoundError):
        await client.job("no-such-job").status()


async def test_models_metadata_and_readiness(client: AsyncClient, worker: EchoWorker) -> None:
    assert worker.model in {model.name for model in await client.models()}
    assert (await client.metadata(worker.model))["platform"] == "echo"
    assert await client.ready()
    assert await client.ready(worker.model)
    assert not await client.ready("no-such-model")
