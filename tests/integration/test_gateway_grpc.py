"""The gateway's gRPC side, judged by the protocol's own client: what works, and what is an error of which kind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from msgspec import structs
from tritonclient.utils import InferenceServerException

from local.kafka import LocalKafka
from schemas.errors import ErrorCode, InferenceError
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import CLAIM_ABOVE_BYTES, MAX_BODY_BYTES, ROW, records_in
from tests.integration.gateway_process import GatewayProcess
from tests.integration.grpc_calls import bare, failed, infer, replied, row_input, row_request, rows_of

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

Code = grpc.StatusCode


@pytest_asyncio.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[Any]:
    async with triton.InferenceServerClient(gateway.grpc) as client:
        yield client


@pytest_asyncio.fixture
async def channel(gateway: GatewayProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        yield channel


async def test_an_inference_comes_back_with_its_id_and_parameters(client: Any, worker: EchoWorker) -> None:
    result = await replied(worker, client.infer(worker.model, [row_input()], request_id="mine"))
    assert rows_of(result) == [ROW]
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == (worker.model, "2", "mine")
    assert response.parameters["batch_rows"].int64_param == 1


async def test_a_version_priority_and_the_three_clocks_reach_the_record(client: Any, worker: EchoWorker) -> None:
    call = client.infer(
        worker.model,
        [row_input()],
        model_version="1",
        outputs=[triton.InferRequestedOutput("x")],
        priority=3,
        timeout=7_000_000,
        parameters={"deadline_ms": 60_000, "execution_timeout_ms": 500},
    )
    answer = asyncio.ensure_future(call)
    taken = await worker.take()
    envelope = taken.envelope
    assert (envelope.model_version, envelope.priority, envelope.execution_timeout_ms) == ("1", 3, 500)
    assert envelope.start_by is not None
    assert envelope.deadline is not None
    assert 6_000 < envelope.start_by.at_ms - taken.created_ms <= 7_100
    assert 59_000 < envelope.deadline.at_ms - taken.created_ms <= 60_100
    await worker.reply(taken)
    assert rows_of(await answer) == [ROW]


async def test_a_callers_deadline_and_metadata_reach_the_record(channel: Any, worker: EchoWorker) -> None:
    traceparent = f"00-{uuid.uuid4().hex}-{uuid.uuid4().hex[:16]}-01"
    call = await infer(
        channel, worker.model, timeout=15, tidegate_priority="2", tidegate_timeout_ms="900000", traceparent=traceparent
    )
    taken = await worker.take()
    envelope = taken.envelope
    assert envelope.deadline is not None
    assert envelope.start_by is not None
    assert 13_000 < envelope.deadline.at_ms - taken.created_ms <= 15_200
    assert 890_000 < envelope.start_by.at_ms - taken.created_ms <= 900_100
    assert (envelope.priority, envelope.traceparent) == (2, traceparent)
    await worker.reply(taken)
    await call
    told = dict(await call.trailing_metadata())
    assert (told["x-request-id"], told["traceparent"]) == (envelope.id, traceparent)


async def test_without_a_deadline_the_record_has_none(channel: Any, worker: EchoWorker) -> None:
    call = await infer(channel, worker.model, timeout=None)
    taken = await worker.take()
    assert (taken.envelope.deadline, taken.envelope.start_by) == (None, None)
    await worker.reply(taken)
    await call


async def test_the_clients_blocking_calls_work(gateway: GatewayProcess, worker: EchoWorker) -> None:
    results: list[tuple[Any, Any]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(result: Any, error: Any) -> None:
        results.append((result, error))
        loop.call_soon_threadsafe(done.set)

    with sync_triton.InferenceServerClient(gateway.grpc) as client:
        result = await replied(worker, asyncio.to_thread(client.infer, worker.model, [row_input()]))
        assert rows_of(result) == [ROW]
        client.async_infer(worker.model, [row_input(2)], note)
        await worker.reply(await worker.take())
        await done.wait()
        (only,) = results
        assert (rows_of(only[0]), only[1]) == ([ROW, ROW], None)
        assert await asyncio.to_thread(client.is_server_ready)
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            await asyncio.to_thread(client.infer, "nobody", [row_input()])


async def test_a_large_tensor_travels_through_the_store_and_back(client: Any, worker: EchoWorker) -> None:
    config = structs.replace(worker.announcement.metadata, max_batch_size=1 << 20)
    worker.announcement = structs.replace(worker.announcement, metadata=config)
    await worker.announce()
    rows = CLAIM_ABOVE_BYTES // 8
    while (await client.get_model_metadata(worker.model)).inputs[0].shape[0] != -1:
        raise AssertionError("a batch dimension is always -1")
    tensor = row_input(rows)
    for _ in range(200):  # until the gateway has read the new announcement
        call = asyncio.ensure_future(client.infer(worker.model, [tensor]))
        taking = asyncio.ensure_future(worker.take())
        await asyncio.wait((call, taking), return_when=asyncio.FIRST_COMPLETED)
        if taking.done():
            break
        taking.cancel()
        assert "batch" in str(call.exception())
    taken = await taking
    assert taken.envelope.claim
    call.cancel()


async def test_health_and_metadata(client: Any, worker: EchoWorker) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(worker.model)
    assert await client.is_model_ready(worker.model, "1")
    assert not await client.is_model_ready(worker.model, "9")
    assert not await client.is_model_ready("nobody")
    server = await client.get_server_metadata()
    assert (server.name, "model_repository" in server.extensions) == ("tidegate", True)
    assert not {"system_shared_memory", "cuda_shared_memory", "trace", "logging"} & set(server.extensions)
    model = await client.get_model_metadata(worker.model)
    assert (list(model.versions), model.platform) == (["1", "2"], "echo")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [("x", "FP32", [-1, 4])]


async def test_configuration_statistics_and_index(client: Any, worker: EchoWorker) -> None:
    with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
        await client.get_model_config(worker.model)
    config = {
        "name": worker.model,
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "dynamic_batching": {"priority_queue_policy": {"1": {"max_queue_size": 5}}, "max_queue_delay_microseconds": 9},
        "of_a_newer_worker": True,
    }
    worker.announcement = structs.replace(worker.announcement, config=config)
    await worker.announce()
    told: Any = None
    while told is None:
        try:
            told = (await client.get_model_config(worker.model)).config
        except InferenceServerException as error:
            if error.status() != "StatusCode.UNIMPLEMENTED":  # as it is until the gateway has read it
                raise
    assert (told.name, told.max_batch_size, told.input[0].data_type) == (worker.model, 8, 11)
    assert told.dynamic_batching.priority_queue_policy[1].max_queue_size == 5
    statistics = (await client.get_inference_statistics(worker.model)).model_stats
    assert [(each.name, each.version, each.inference_stats.success.count) for each in statistics] == [
        (worker.model, "1", 0),
        (worker.model, "2", 0),
    ]
    assert worker.model in {each.name for each in (await client.get_inference_statistics()).model_stats}
    index = [each for each in (await client.get_model_repository_index()).models if each.name == worker.model]
    assert [(each.version, each.state) for each in index] == [("1", "READY"), ("2", "READY")]


async def test_what_is_not_served_says_so(client: Any, channel: Any, worker: EchoWorker) -> None:
    for refused in (
        client.get_system_shared_memory_status(),
        client.register_system_shared_memory("r", "k", 8),
        client.get_cuda_shared_memory_status(),
        client.get_trace_settings(),
        client.get_log_settings(),
    ):
        with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
            await refused
    code, message, told = await failed(bare(channel, "SystemSharedMemoryStatus")(b""))
    assert (code, told["tidegate-code"]) == (Code.UNIMPLEMENTED, "unsupported")
    assert "raw_input_contents" in message
    assert (await failed(bare(channel, "Nothing")(b"")))[0] is Code.UNIMPLEMENTED
    for managing in (client.load_model(worker.model), client.unload_model(worker.model)):
        with pytest.raises(InferenceServerException, match=r"PERMISSION_DENIED.*management port"):
            await managing


async def test_what_cannot_be_asked_is_refused_with_the_status_of_its_kind(
    channel: Any, client: Any, worker: EchoWorker
) -> None:
    code, message, told = await failed(await infer(channel, "nobody"))
    assert (code, told["tidegate-code"]) == (Code.NOT_FOUND, "model_not_found")
    assert "nobody" in message
    assert told["x-request-id"]
    wrong = sync_triton.InferInput("x", [1, 4], "INT32")
    wrong.set_data_from_numpy(np.zeros((1, 4), np.int32))
    with pytest.raises(InferenceServerException, match="FP32") as caught:
        await client.infer(worker.model, [wrong])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    for body in (b"\xff", row_request(worker.model).SerializeToString()[:-3]):
        code, message, _ = await failed(bare(channel, "ModelInfer")(body))
        assert code is Code.INVALID_ARGUMENT, message
    code, message, _ = await failed(bare(channel, "ModelMetadata")(b"\x0a\x01\xff"))
    assert (code, "UTF-8" in message) == (Code.INVALID_ARGUMENT, True)
    for name in ("tidegate_priority", "tidegate_deadline_ms"):
        code, message, _ = await failed(await infer(channel, worker.model, **cast("Any", {name: "soon"})))
        assert (code, name.replace("_", "-") in message) == (Code.INVALID_ARGUMENT, True)
    code, message, _ = await failed(bare(channel, "ModelInfer")(bytes(MAX_BODY_BYTES + 1)))
    assert code is Code.RESOURCE_EXHAUSTED, message
    assert await records_in(worker) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InferenceError(ErrorCode.MODEL_FAILED, "über" * 500, remedy="x" * 5000), Code.INTERNAL),
        (InferenceError(ErrorCode.DEADLINE_EXCEEDED, "late"), Code.DEADLINE_EXCEEDED),
        (InferenceError(ErrorCode.MODEL_LOAD_FAILED, "broken"), Code.UNAVAILABLE),
    ],
)
async def test_a_workers_error_keeps_its_kind(
    channel: Any, worker: EchoWorker, error: InferenceError, code: grpc.StatusCode
) -> None:
    call = await infer(channel, worker.model)
    taken = await worker.take()
    await worker.reply(taken, error=error)
    got, message, told = await failed(call)
    assert (got, told["tidegate-code"]) == (code, error.code.wire)
    assert error.message[:100] in message
    assert told.get("retry-after") == ("5" if error.code is ErrorCode.MODEL_LOAD_FAILED else None)


async def test_one_request_too_many_is_resource_exhausted(channel: Any, worker: EchoWorker) -> None:
    calls = [asyncio.ensure_future(await infer(channel, worker.model)) for _ in range(20)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    code, _, told = await failed(done.pop())
    assert (code, told["tidegate-code"], told["retry-after"]) == (Code.RESOURCE_EXHAUSTED, "overloaded", "1")
    for call in waiting:
        call.cancel()


async def test_loading_and_unloading_work_on_the_management_port(
    kafka: LocalKafka, gateway: GatewayProcess, worker: EchoWorker
) -> None:
    managed = GatewayProcess(
        bootstrap=kafka.bootstrap, prefix=gateway.prefix, store=gateway.store, grpc_management_port=0, grpc_port=-1
    )
    with managed:
        managed.ready()
        await asyncio.to_thread(managed.logged, "learn_model", model=worker.model)
        port = managed.logged("listen_grpc", name="management")["grpc_port"]
        async with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            await client.load_model(worker.model)
            wish = await asyncio.to_thread(managed.logged, "wish_model", action="load", model=worker.model)
            assert wish["version"] == "2"
            await client.unload_model(worker.model)
            with pytest.raises(InferenceServerException, match=r"UNIMPLEMENTED.*repository"):
                await client.load_model(worker.model, config="{}")
            with pytest.raises(InferenceServerException, match="NOT_FOUND"):
                await client.load_model("nobody")
            assert rows_of(await replied(worker, client.infer(worker.model, [row_input()]))) == [ROW]
