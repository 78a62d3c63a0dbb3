"""How calls of the gRPC side end: with a job's id, by their deadline, by a caller that leaves; and streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.cancellation import cancellation_key, decode_cancellation
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import encode_stored, outcome_key
from schemas.record import Origin
from schemas.v2 import HEADER_LENGTH, decode_response
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker, Taken
from tests.integration.gateway_calls import MAX_IN_FLIGHT, ROW, records_in
from tests.integration.gateway_process import GatewayProcess
from tests.integration.grpc_calls import failed, infer, row_input, row_request, rows_of, streaming

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

Code = grpc.StatusCode
Answer = sync_triton.service_pb2.ModelInferResponse
StreamAnswer = sync_triton.service_pb2.ModelStreamInferResponse


@pytest_asyncio.fixture
async def channel(gateway: GatewayProcess) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        yield channel


async def result_of(http: httpx.AsyncClient, job_id: str) -> Any:
    answer = await http.get(f"/v1/jobs/{job_id}/result", headers={"accept": "application/octet-stream"})
    assert answer.status_code == 200, answer.text
    return decode_response(answer.content, int(answer.headers[HEADER_LENGTH])).outputs[0].to_list()


async def cancelled(worker: EchoWorker, wanted: Origin) -> None:
    """Wait for the cancellation of this request on the control topic."""
    place = TopicPartition(worker.topics.control, 0)
    async with asyncio.timeout(20), AIOKafkaConsumer(bootstrap_servers=worker.bootstrap) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        while True:
            record = await consumer.getone()
            found = decode_cancellation(record.key, record.value)
            if found is not None and found[0] == wanted:
                assert (found[1], record.key) == (EPOCH, cancellation_key(wanted, EPOCH))
                assert found[2] is not None
                assert found[2].reason
                return


async def test_who_prefers_not_to_wait_gets_a_job(
    channel: Any, worker: EchoWorker, gateway: GatewayProcess, http: httpx.AsyncClient
) -> None:
    call = await infer(channel, worker.model, prefer="respond-async")
    answer = Answer.FromString(await call)
    assert (answer.id, len(answer.outputs), len(answer.raw_output_contents)) == ("mine", 0, 0)
    job_id = answer.parameters["tidegate_job_id"].string_param
    taken = await worker.take()
    assert (taken.envelope.stored, taken.envelope.reply_to, taken.envelope.deadline) == (True, None, None)
    assert (await http.get(f"/v1/jobs/{job_id}")).json()["state"] == "queued"
    key = outcome_key(taken.origin, EPOCH)
    open_store(str(gateway.store)).put(key, encode_stored(worker.outcome(taken)))
    assert await result_of(http, job_id) == ROW


async def test_a_wait_that_runs_out_names_the_job(
    channel: Any, worker: EchoWorker, gateway: GatewayProcess, http: httpx.AsyncClient
) -> None:
    code, message, told = await failed(await infer(channel, worker.model, prefer="wait=0"))
    assert (code, told["tidegate-code"]) == (Code.DEADLINE_EXCEEDED, "deadline_exceeded")
    assert told["tidegate-job-id"] in message
    taken = await worker.take()
    await worker.reply(taken)
    await asyncio.to_thread(gateway.logged, "keep_outcome", id=taken.envelope.id)
    assert await result_of(http, told["tidegate-job-id"]) == ROW


async def left(worker: EchoWorker, gateway: GatewayProcess, taken: Taken, channel: Any) -> None:
    """The answer of a caller that has left is not kept: the next late one is, and its predecessor was not."""
    await worker.reply(taken)
    assert (await failed(await infer(channel, worker.model, prefer="wait=0")))[2]["tidegate-job-id"]
    late = await worker.take()
    await worker.reply(late)
    await asyncio.to_thread(gateway.logged, "keep_outcome", id=late.envelope.id)
    assert not gateway.seen("keep_outcome", id=taken.envelope.id)


async def test_a_caller_that_leaves_has_its_request_cancelled(
    channel: Any, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    call = await infer(channel, worker.model)
    taken = await worker.take()
    call.cancel()
    await cancelled(worker, taken.origin)
    await left(worker, gateway, taken, channel)


async def test_the_clients_own_way_to_cancel_works(gateway: GatewayProcess, worker: EchoWorker) -> None:
    results: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    with sync_triton.InferenceServerClient(gateway.grpc) as client:
        context = client.async_infer(
            worker.model,
            [row_input()],
            lambda result, error: loop.call_soon_threadsafe(results.put_nowait, error),
        )
        taken = await worker.take()
        context.cancel()
        assert (await results.get()).status() == "StatusCode.CANCELLED"
        await cancelled(worker, taken.origin)


async def test_a_deadline_that_passes_ends_the_call_without_a_second_record(
    channel: Any, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    code, _, _ = await failed(await infer(channel, worker.model, timeout=0.7))
    assert code is Code.DEADLINE_EXCEEDED
    taken = await worker.take()
    assert taken.envelope.deadline is not None
    await left(worker, gateway, taken, channel)
    call = await infer(channel, worker.model)
    other = await worker.take()
    call.cancel()
    await cancelled(worker, other.origin)  # and, read from the beginning, none before it:
    place = TopicPartition(worker.topics.control, 0)
    async with AIOKafkaConsumer(bootstrap_servers=worker.bootstrap) as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        while True:
            record = await consumer.getone()
            found = decode_cancellation(record.key, record.value)
            assert found is None or found[0] != taken.origin
            if found is not None and found[0] == other.origin:
                break


async def test_a_stream_answers_in_order_whatever_order_the_work_ends_in(
    gateway: GatewayProcess, worker: EchoWorker
) -> None:
    async with triton.InferenceServerClient(gateway.grpc) as client:

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(4):
                model = "nobody" if number == 2 else worker.model
                yield {
                    "model_name": model,
                    "inputs": [row_input()],
                    "request_id": f"{number}",
                    "enable_empty_final_response": number == 3,
                }

        answers = client.stream_infer(requests())
        taken = [await worker.take() for _ in range(3)]
        for each in sorted(taken, key=lambda each: each.origin.offset, reverse=True):
            await worker.reply(each)
        got = [answer async for answer in answers]
    assert [error is None for _, error in got] == [True, True, False, True]
    assert "nobody" in str(got[2][1])
    responses = [result.get_response() for result, error in got if error is None]
    assert [response.id for response in responses] == ["0", "1", "3"]
    assert all(response.parameters["triton_final_response"].bool_param for response in responses)
    assert rows_of(got[3][0]) == [ROW]


async def test_a_stream_of_the_blocking_client(gateway: GatewayProcess, worker: EchoWorker) -> None:
    results: asyncio.Queue[Any] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    with sync_triton.InferenceServerClient(gateway.grpc) as client:
        client.start_stream(lambda result, error: loop.call_soon_threadsafe(results.put_nowait, (result, error)))
        client.async_stream_infer(worker.model, [row_input()], request_id="a")
        await worker.reply(await worker.take())
        result, error = await results.get()
        assert (rows_of(result), error, result.get_response().id) == ([ROW], None, "a")
        client.async_stream_infer("nobody", [row_input()])
        result, error = await results.get()
        assert (result, "nobody" in error.message()) == (None, True)
        await asyncio.to_thread(client.stop_stream)


async def test_errors_in_a_stream_say_whose_and_of_which_kind(channel: Any, worker: EchoWorker) -> None:
    stream = streaming(channel)(metadata=[("prefer", "wait=0")])
    await stream.write(b"\xff")
    await stream.write(row_request(worker.model, id="late").SerializeToString())
    await stream.done_writing()
    broken = StreamAnswer.FromString(await stream.read())
    assert broken.infer_response.parameters["tidegate_code"].string_param == "invalid_request"
    late = StreamAnswer.FromString(await stream.read())
    told = late.infer_response.parameters
    assert (late.infer_response.id, told["tidegate_code"].string_param) == ("late", "deadline_exceeded")
    assert told["tidegate_job_id"].string_param in late.error_message
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is Code.OK


async def test_a_stream_has_so_many_under_way_and_leaves_the_others_unread(
    kafka: Any, gateway: GatewayProcess, worker: EchoWorker
) -> None:
    narrow = GatewayProcess(
        bootstrap=kafka.bootstrap, prefix=gateway.prefix, store=gateway.store, grpc_stream_in_flight=2
    )
    with narrow:
        narrow.ready()
        await asyncio.to_thread(narrow.logged, "learn_model", model=worker.model)
        async with grpc.aio.insecure_channel(narrow.grpc) as channel:
            stream = streaming(channel)()
            for number in range(5):
                await stream.write(row_request(worker.model, id=str(number)).SerializeToString())
            await stream.done_writing()
            for number in range(5):
                taken = await worker.take()
                # Two may have come; never more than have been answered and two.
                assert await records_in(worker) <= number + 2
                await worker.reply(taken)
                if number:
                    assert StreamAnswer.FromString(await stream.read()).infer_response.id == str(number - 1)
            assert StreamAnswer.FromString(await stream.read()).infer_response.id == "4"
            assert await stream.read() is grpc.aio.EOF


async def test_a_stream_that_is_left_has_all_its_requests_cancelled(
    channel: Any, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    stream = streaming(channel)()
    for number in range(3):
        await stream.write(row_request(worker.model, id=str(number)).SerializeToString())
    taken = [await worker.take() for _ in range(3)]
    stream.cancel()
    for each in taken:
        await cancelled(worker, each.origin)


async def test_a_full_gateway_says_so_in_a_stream_too(channel: Any, worker: EchoWorker) -> None:
    stream, other = (streaming(channel)() for _ in range(2))
    for number in range(MAX_IN_FLIGHT):
        await stream.write(row_request(worker.model, id=str(number)).SerializeToString())
    for _ in range(MAX_IN_FLIGHT):
        await worker.take()
    await other.write(row_request(worker.model).SerializeToString())
    answer = StreamAnswer.FromString(await other.read())
    assert answer.infer_response.parameters["tidegate_code"].string_param == "overloaded"
    assert answer.infer_response.parameters["retry_after"].string_param == "1"
    stream.cancel()
    other.cancel()


async def test_a_thousand_callers_that_leave_take_no_permit_along(channel: Any, worker: EchoWorker) -> None:
    begun_s = time.monotonic()
    for _ in range(1000 // MAX_IN_FLIGHT):
        calls = [await infer(channel, worker.model) for _ in range(MAX_IN_FLIGHT)]
        for call in calls:
            call.cancel()
    while True:  # each cancel is on its way for a moment
        call = asyncio.ensure_future(await infer(channel, worker.model, prefer="wait=0"))
        code, _, told = await failed(call)
        if code is Code.DEADLINE_EXCEEDED:
            assert told["tidegate-job-id"]
            break
        assert (code, time.monotonic() - begun_s < 30) == (Code.RESOURCE_EXHAUSTED, True)


async def test_a_workers_refusal_arrives_in_a_stream(channel: Any, worker: EchoWorker) -> None:
    stream = streaming(channel)()
    await stream.write(row_request(worker.model, id="a").SerializeToString())
    await worker.reply(await worker.take(), error=InferenceError(ErrorCode.MODEL_FAILED, "broken"))
    answer = StreamAnswer.FromString(await stream.read())
    assert (answer.error_message, answer.infer_response.id) == ("broken", "a")
    stream.cancel()
