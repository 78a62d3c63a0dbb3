"""One trace from the caller to the model and back: a real gateway, a real worker, a collector in the test."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc as triton

from local.kafka import LocalKafka
from tests.integration.gateway_process import GatewayProcess
from tests.integration.grpc_calls import bare, streaming
from tests.integration.otlp_collector import OtlpCollector
from tests.integration.worker_process import Installation, WorkerProcess

pytestmark = pytest.mark.kafka

CALLER = "b7ad6b7169203331"
PATH = "/v2/models/dev/infer"
SERVER, PRODUCER, CONSUMER = 2, 4, 5


def body(value: float = 1.0) -> dict[str, object]:
    return {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}


def row_of(model: str) -> Any:
    tensor = triton.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    request = triton.service_pb2.ModelInferRequest(model_name=model)
    request.inputs.append(tensor._get_tensor())
    request.raw_input_contents.append(tensor._get_content())
    return request


def traceparent(trace_id: str, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{CALLER}-{flags}"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpCollector]:
    with OtlpCollector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    site = Installation(kafka.bootstrap, prefix, tmp_path)
    site.add_device("dev", delay_us=300_000, max_batch_size=4, fail_value=13.0, execute_base_ms=5)
    return site


@pytest.fixture
def gateway(site: Installation, request: pytest.FixtureRequest) -> Iterator[GatewayProcess]:
    if "collector" in request.fixturenames:
        request.getfixturevalue("collector")  # before the process, which takes its environment over
    with GatewayProcess(bootstrap=site.bootstrap, prefix=site.prefix, store=site.store) as process:
        yield process.ready()


@pytest_asyncio.fixture
async def worker(site: Installation, gateway: GatewayProcess) -> AsyncIterator[WorkerProcess]:
    async with site.worker() as process:
        await process.ready()
        await asyncio.to_thread(gateway.logged, "learn_model", model="dev")
        yield process


async def test_a_synchronous_request_is_one_trace_with_the_right_parents(
    collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {**traceparent(trace_id), "x-request-id": "mine", "user-agent": "me"}
    async with gateway.client() as http:
        response = await http.post(PATH, json=body(), headers=headers)
    assert response.status_code == 200
    names = ("POST", "send", "process", "queue", "load", "assemble", "infer", "run", "receive")
    spans = await asyncio.to_thread(collector.trace, trace_id, *names)
    server, send, process = spans["POST"], spans["send"], spans["process"]
    assert (server.name, server.kind, server.parent) == ("POST /v2/models/{model}/infer", SERVER, CALLER)
    assert (send.name, send.kind, send.parent) == (f"send {gateway.prefix}.infer.dev", PRODUCER, server.id)
    assert (process.name, process.kind, process.parent) == (f"process {gateway.prefix}.infer.dev", CONSUMER, send.id)
    assert {spans[name].parent for name in ("queue", "load", "assemble", "infer", "run")} == {process.id}
    assert spans["receive"].parent == server.id
    assert {span.service for span in spans.values()} == {"tidegate-gateway", "tidegate-worker"}
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["tidegate.request.id"] == "mine"
    assert server.attributes["user_agent.original"] == "me"
    assert send.attributes["messaging.kafka.offset"] == process.attributes["messaging.kafka.offset"]
    assert spans["run"].attributes["tidegate.batch.rows"] == 1
    assert spans["queue"].begun_ns <= spans["assemble"].begun_ns <= spans["infer"].begun_ns < spans["infer"].ended_ns
    assert spans["infer"].ended_ns <= process.ended_ns
    assert process.begun_ns >= server.begun_ns - 50_000_000  # the broker's clock tells milliseconds
    answered = response.headers["traceparent"].split("-")
    assert (answered[1], answered[2]) == (trace_id, server.id)


async def test_a_grpc_call_is_one_trace_too(
    collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess
) -> None:
    trace_id = "6af7651916cd43dd8448eb211c80319c"
    request = row_of("dev").SerializeToString()
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        sent = [*traceparent(trace_id).items(), ("x-request-id", "mine")]
        call = bare(channel, "ModelInfer")(request, timeout=20, metadata=sent)
        await call
        told = dict(await call.trailing_metadata())
        stream = streaming(channel)(timeout=20, metadata=list(traceparent("7" + trace_id[1:]).items()))
        for each in (request, row_of("nobody").SerializeToString()):
            await stream.write(each)
        await stream.done_writing()
        assert len([each async for each in stream]) == 2
    called = "inference.GRPCInferenceService/ModelInfer"
    spans = await asyncio.to_thread(collector.trace, trace_id, called, "send", "process", "infer", "receive")
    server = spans[called]
    assert (server.kind, server.parent) == (SERVER, CALLER)
    assert (spans["send"].parent, spans["receive"].parent) == (server.id, server.id)
    assert spans["process"].parent == spans["send"].id
    assert (told["traceparent"].split("-")[1:3], told["x-request-id"]) == ([trace_id, server.id], "mine")
    assert (server.attributes["rpc.method"], server.attributes["rpc.grpc.status_code"]) == ("ModelInfer", 0)
    assert (server.attributes["tidegate.request.id"], server.attributes["tidegate.model"]) == ("mine", "dev")
    streamed = f"{called[: -len('ModelInfer')]}ModelStreamInfer"
    seen = await asyncio.to_thread(collector.wait_for, lambda spans: sum(span.name == streamed for span in spans) == 2)
    of_stream = [span for span in seen if span.name == streamed]
    assert {span.parent for span in of_stream} == {CALLER}
    assert sorted(span.attributes["rpc.grpc.status_code"] for span in of_stream) == [0, 5]


async def test_a_job_is_one_trace_too(collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess) -> None:
    trace_id = "1af7651916cd43dd8448eb211c80319c"
    async with gateway.client() as http:
        response = await http.post(PATH, json=body(), headers=traceparent(trace_id) | {"prefer": "respond-async"})
        assert response.status_code == 202
        spans = await asyncio.to_thread(collector.trace, trace_id, "POST", "send", "process", "infer")
        assert spans["process"].parent == spans["send"].id
        assert spans["send"].parent == spans["POST"].id
        assert spans["POST"].attributes["http.response.status_code"] == 202
        assert "receive" not in spans
        trace_id = "2af7651916cd43dd8448eb211c80319c"
        await http.get(response.headers["location"], headers=traceparent(trace_id))
    spans = await asyncio.to_thread(collector.trace, trace_id, "GET")
    assert spans["GET"].name == "GET /v1/jobs/{id}"


async def test_the_members_of_a_batch_lead_to_its_one_run(
    collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess
) -> None:
    traces = [f"{number}bf7651916cd43dd8448eb211c80319c" for number in range(4)]
    async with gateway.client() as http:
        await http.post(PATH, json=body(), headers=traceparent("f" * 32))  # the model is loaded now
        answers = await asyncio.gather(*(http.post(PATH, json=body(), headers=traceparent(each)) for each in traces))
    assert {answer.json()["parameters"]["batch_requests"] for answer in answers} == {4}

    def runs(spans: list[object]) -> int:
        return sum(span.name == "run dev" and span.trace in traces for span in spans)  # type: ignore[attr-defined]  # Seen

    all_spans = await asyncio.to_thread(
        collector.wait_for,
        lambda spans: (
            runs(list(spans)) == 1
            and sum(span.name.startswith("process") and span.trace in traces for span in spans) == 4
        ),
    )
    (run,) = [span for span in all_spans if span.name == "run dev" and span.trace in traces]
    members = [span for span in all_spans if span.name.startswith("process") and span.trace in traces]
    (first,) = [member for member in members if member.id == run.parent]
    assert run.attributes["tidegate.batch.requests"] == 4
    assert [member.links for member in members if member is not first] == [((run.trace, run.id),)] * 3


async def test_a_failure_is_marked_where_it_happened(
    collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess
) -> None:
    trace_id = "3af7651916cd43dd8448eb211c80319c"
    async with gateway.client() as http:
        response = await http.post(PATH, json=body(13.0), headers=traceparent(trace_id))
    assert response.status_code == 500
    spans = await asyncio.to_thread(collector.trace, trace_id, "POST", "process")
    assert (spans["process"].is_error, spans["process"].attributes["error.type"]) == (True, "model_failed")
    assert (spans["POST"].is_error, spans["send"].is_error) == (True, False)
    processed = [span for span in collector.spans if span.trace == trace_id and span.name.startswith("process")]
    assert len(processed) == 1


async def test_what_the_caller_does_not_record_nobody_does(
    collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess
) -> None:
    unrecorded, recorded = "4af7651916cd43dd8448eb211c80319c", "5af7651916cd43dd8448eb211c80319c"
    async with gateway.client() as http:
        response = await http.post(PATH, json=body(), headers=traceparent(unrecorded, "00"))
        assert response.headers["traceparent"].split("-")[1] == unrecorded
        assert response.headers["traceparent"].endswith("-00")
        await http.post(PATH, json=body(), headers=traceparent(recorded))
    await asyncio.to_thread(collector.trace, recorded, "POST", "send", "process")
    assert unrecorded not in {span.trace for span in collector.spans}


async def test_a_request_without_a_trace_begins_one(
    collector: OtlpCollector, gateway: GatewayProcess, worker: WorkerProcess
) -> None:
    async with gateway.client() as http:
        response = await http.post(PATH, json=body())
    trace_id = response.headers["traceparent"].split("-")[1]
    spans = await asyncio.to_thread(collector.trace, trace_id, "POST", "send", "process", "receive")
    assert spans["POST"].parent == ""


async def test_a_collector_that_is_away_stops_nothing(monkeypatch: pytest.MonkeyPatch, site: Installation) -> None:
    with socket.socket() as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with GatewayProcess(bootstrap=site.bootstrap, prefix=site.prefix, store=site.store) as gateway:
            gateway.ready()
            async with site.worker() as worker, gateway.client() as http:
                await worker.ready()
                await asyncio.to_thread(gateway.logged, "learn_model", model="dev")
                for _ in range(3):
                    assert (await http.post(PATH, json=body())).status_code == 200
                begun_s = time.monotonic()
                worker.terminate()
                gateway.terminate()
                assert await worker.ended() == 0
            assert await asyncio.to_thread(gateway.ended) == 0
            assert time.monotonic() - begun_s < 15
            assert gateway.not_json() == []


async def test_without_a_collector_the_trace_context_is_passed_on_as_it_is(gateway: GatewayProcess) -> None:
    headers = traceparent("6af7651916cd43dd8448eb211c80319c")
    async with gateway.client() as http:
        for answer in (
            await http.get("/v2/health/live", headers=headers),
            await http.get("/nowhere", headers=headers),
            await http.post("/v2/models/none/infer", headers=headers),
        ):
            assert isinstance(answer, httpx.Response)
            assert answer.headers["traceparent"] == headers["traceparent"]
