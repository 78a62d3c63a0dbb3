"""Synchronous requests, refusals and routes of the gateway: a real process, a real broker, a worker in the test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.models import EXTENSIONS
from schemas.errors import ErrorCode, InferenceError
from schemas.progress import Progress
from schemas.record import decode_value
from schemas.request import InferenceRequest, RequestedOutput
from schemas.v2 import HEADER_LENGTH, decode_response, encode_request
from store import open_store
from tests.integration.echo_worker import PARTITIONS, EchoWorker, Taken
from tests.integration.gateway_calls import (
    BODY,
    CLAIM_ABOVE_BYTES,
    MAX_BODY_BYTES,
    MAX_IN_FLIGHT,
    ROW,
    answered,
    path,
    records_in,
    row_request,
)
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


async def test_json_in_json_out(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    response, taken = await answered(worker, http.post(path(worker), json=BODY, headers={"traceparent": trace}))
    assert response.status_code == 200
    document = response.json()
    assert document["outputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW}]
    assert (document["model_name"], document["id"]) == (worker.model, "mine")
    assert document["parameters"]["batch_rows"] == 1
    assert response.headers["x-request-id"] == taken.envelope.id
    assert response.headers["traceparent"] == taken.envelope.traceparent == trace
    assert taken.envelope.reply_to is not None
    assert not taken.envelope.stored
    assert taken.envelope.deadline is None


async def test_raw_tensors_in_and_out_are_passed_on_as_they_are(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    body, length = encode_request(row_request(binary=True))
    response, taken = await answered(
        worker, http.post(path(worker), content=body, headers={HEADER_LENGTH: str(length)})
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/octet-stream"
    decoded = decode_response(response.content, int(response.headers[HEADER_LENGTH]))
    assert decoded.outputs[0].to_list() == ROW
    assert decode_value(taken.value, taken.header_length, taken.origin).inputs[0].to_list() == ROW


async def test_one_output_raw_by_its_own_parameter(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    request = InferenceRequest(row_request().inputs, (RequestedOutput("x", {"binary_data": True}),))
    body, length = encode_request(request)
    response, _ = await answered(worker, http.post(path(worker), content=body, headers={HEADER_LENGTH: str(length)}))
    assert decode_response(response.content, int(response.headers[HEADER_LENGTH])).outputs[0].to_list() == ROW


async def test_a_version_is_passed_on_and_an_unserved_one_is_not_found(
    http: httpx.AsyncClient, worker: EchoWorker
) -> None:
    response, taken = await answered(worker, http.post(f"/v2/models/{worker.model}/versions/1/infer", json=BODY))
    assert response.json()["model_version"] == taken.envelope.model_version == "1"
    missing = await http.post(f"/v2/models/{worker.model}/versions/9/infer", json=BODY)
    assert missing.status_code == 404
    assert "1, 2" in missing.json()["remedy"]


async def test_a_malformed_traceparent_is_replaced(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    response, taken = await answered(worker, http.post(path(worker), json=BODY, headers={"traceparent": "00-0-0-0"}))
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", taken.envelope.traceparent)
    assert response.headers["traceparent"] == taken.envelope.traceparent


async def test_the_caller_s_request_id_is_given_back_and_identifies_nothing(
    http: httpx.AsyncClient, worker: EchoWorker
) -> None:
    headers = {"x-request-id": "mine"}
    first, second = (asyncio.ensure_future(http.post(path(worker), json=BODY, headers=headers)) for _ in range(2))
    taken = [await worker.take() for _ in range(2)]
    assert len({each.envelope.id for each in taken} - {"mine"}) == 2
    for each in taken:
        await worker.reply(each)
    assert [(await each).headers["x-request-id"] for each in (first, second)] == ["mine", "mine"]
    refused = await http.post("/v2/models/none/infer", json=BODY, headers=headers)
    assert (refused.headers["x-request-id"], refused.json()["request_id"]) == ("mine", "mine")
    routed = await http.get("/v2/models/none", headers=headers)
    assert (routed.headers["x-request-id"], routed.json()["request_id"]) == ("mine", "mine")


async def test_the_three_clocks_and_the_priority_are_kept_apart(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    asked = {"timeout": 5_000_000, "deadline_ms": 9000, "execution_timeout_ms": 700, "priority": 2}
    _, taken = await answered(worker, http.post(path(worker), json=BODY | {"parameters": asked}))
    envelope = taken.envelope
    assert envelope.start_by is not None
    assert envelope.deadline is not None
    assert abs(envelope.start_by.at_ms - taken.created_ms - 5000) < 1000
    assert abs(envelope.deadline.at_ms - taken.created_ms - 9000) < 1000
    assert (envelope.execution_timeout_ms, envelope.priority) == (700, 2)


@pytest.mark.parametrize(
    ("code", "status"),
    [(ErrorCode.DEADLINE_EXCEEDED, 504), (ErrorCode.MODEL_FAILED, 500), (ErrorCode.MODEL_LOAD_FAILED, 503)],
)
async def test_a_failed_outcome_is_a_problem(
    http: httpx.AsyncClient, worker: EchoWorker, code: ErrorCode, status: int
) -> None:
    call = asyncio.ensure_future(http.post(path(worker), json=BODY))
    taken = await worker.take()
    await worker.reply(taken, error=InferenceError(code, "it went wrong", field="x", remedy="do this"))
    response = await call
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"] == response.json()["error"] == "it went wrong"
    assert response.json()["request_id"] == taken.envelope.id


async def test_a_large_request_and_a_large_answer_travel_through_the_store(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    store = open_store(str(gateway.store))
    data = [float(number % 100) for number in range(8 * 4)] * 1
    rows = {"name": "x", "datatype": "FP32", "shape": [8, 4], "data": data}
    padding = "p" * CLAIM_ABOVE_BYTES
    call = asyncio.ensure_future(http.post(path(worker), json={"inputs": [rows], "parameters": {"padding": padding}}))
    taken = await worker.take()
    assert taken.value == b""
    value = store.get(taken.envelope.claim)
    request = decode_value(value, taken.header_length, taken.origin)
    assert request.inputs[0].to_list() == data
    assert request.parameters["padding"] == padding
    whole = Taken(taken.envelope, taken.origin, value, taken.header_length, taken.created_ms)
    key = f"claims/reply-{taken.envelope.id}"
    store.put(key, worker.outcome(whole).value)
    await worker.reply(whole, claim=key)
    assert (await call).json()["outputs"][0]["data"] == data


async def test_a_duplicate_reply_changes_nothing(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    call = asyncio.ensure_future(http.post(path(worker), json=BODY))
    taken = await worker.take()
    await worker.reply(taken)
    await worker.reply(taken)
    assert (await call).status_code == 200
    response, _ = await answered(worker, http.post(path(worker), json=BODY))
    assert response.status_code == 200


async def test_an_unknown_model_is_not_found_and_nothing_is_produced(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    response = await http.post("/v2/models/nobody/infer", json=BODY)
    assert response.status_code == 404
    assert response.json()["code"] == "model_not_found"
    assert f"{gateway.prefix}.infer.nobody" not in await worker.consumer.topics()


def tensor(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW} | changes]}


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        (tensor(shape=[1, 5], data=[1.0] * 5), "inputs.x.shape", "[1, 5]"),
        (tensor(shape=[9, 4], data=ROW * 9), "inputs.x.shape", "[9, 4]"),
        (tensor(datatype="INT64", data=[1, 2, 3, 4]), "inputs.x.datatype", "INT64"),
        (tensor(name="y"), "inputs", "y"),
        (tensor(data=ROW[:3]), "x.data", "3"),
        (tensor(data=[1, 2, "three", 4]), "x.data", "three"),
        (tensor() | {"outputs": [{"name": "z"}]}, "outputs", "z"),
        (tensor() | {"parameters": {"timeout": "soon"}}, "parameters.timeout", "soon"),
    ],
)
async def test_a_request_that_does_not_fit_names_field_value_and_remedy(
    http: httpx.AsyncClient, worker: EchoWorker, body: dict[str, Any], field: str, value: str
) -> None:
    response = await http.post(path(worker), json=body)
    assert response.status_code == 400
    document = response.json()
    assert (document["field"], document["value"]) == (field, value)
    assert document["remedy"]
    assert await records_in(worker) == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"inputs": 3}'])
async def test_a_malformed_body_is_a_problem(http: httpx.AsyncClient, worker: EchoWorker, content: bytes) -> None:
    response = await http.post(path(worker), content=content)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid_request"


@pytest.mark.parametrize("length", ["x", "-1", "1e3", "999999999999999999"])
async def test_a_malformed_header_length_is_a_problem(http: httpx.AsyncClient, worker: EchoWorker, length: str) -> None:
    response = await http.post(path(worker), content=b"{}", headers={HEADER_LENGTH: length})
    assert response.status_code == 400
    assert response.json()["field"] == HEADER_LENGTH


async def test_a_body_above_the_bound_is_413_announced_or_not(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * (MAX_BODY_BYTES // 10)

    for content in (b" " * (MAX_BODY_BYTES + 1), chunks()):
        response = await http.post(path(worker), content=content)
        assert response.status_code == 413
        assert response.json()["code"] == "payload_too_large"


async def test_more_in_flight_than_allowed_is_429_with_a_time_to_come_back(
    http: httpx.AsyncClient, worker: EchoWorker
) -> None:
    calls = [asyncio.ensure_future(http.post(path(worker), json=BODY)) for _ in range(MAX_IN_FLIGHT)]
    taken = [await worker.take() for _ in range(MAX_IN_FLIGHT)]
    refused = await http.post(path(worker), json=BODY)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    for each in taken:
        await worker.reply(each)
    assert {response.status_code for response in await asyncio.gather(*calls)} == {200}
    after, _ = await answered(worker, http.post(path(worker), json=BODY))
    assert after.status_code == 200


async def test_server_and_model_metadata(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    server = (await http.get("/v2")).json()
    assert (server["name"], server["extensions"]) == ("tidegate", list(EXTENSIONS))
    assert (await http.get("/v2/health/live")).status_code == 200
    assert (await http.get("/v2/health/ready")).status_code == 200
    for version in ("", "/versions/2"):
        model = (await http.get(f"/v2/models/{worker.model}{version}")).json()
        assert model["versions"] == ["1", "2"]
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert (await http.get(f"/v2/models/{worker.model}{version}/ready")).status_code == 200
    assert (await http.get("/v2/models/nobody")).status_code == 404
    assert (await http.get(f"/v2/models/{worker.model}/versions/9/ready")).status_code == 404


async def test_unknown_paths_and_methods_are_problems(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    for response, status in ((await http.get("/nothing"), 404), (await http.get(path(worker)), 405)):
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"


async def test_the_backlog_is_what_is_unread_or_unacknowledged(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    empty = (await http.get(f"/scaling/v1/pools/{worker.pool}")).json()
    assert empty == {
        "pool": worker.pool,
        "backlog": 0,
        "models": {worker.model: {"backlog": 0}},
        "partitions": PARTITIONS,
    }
    ends = [0, 0]
    while min(ends) < 3:
        await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
        taken = await worker.take()
        ends[taken.origin.partition] = taken.origin.offset + 1
    await worker.commit(0, Progress(0, 2, ((1, 2),)))  # partition 1 stays without a commit
    scale = (await http.get(f"/scaling/v1/pools/{worker.pool}")).json()
    assert scale["backlog"] == scale["models"][worker.model]["backlog"] == sum(ends) - 1
    unknown = await http.get("/scaling/v1/pools/nobody")
    assert unknown.status_code == 404


async def test_metrics_tell_responses_and_state(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    await answered(worker, http.post(path(worker), json=BODY))
    text = (await http.get("/metrics")).text
    assert 'tidegate_gateway_responses_total{status="200"}' in text
    assert 'tidegate_gateway_state{state="serving"} 1.0' in text
    assert "tidegate_gateway_in_flight 0.0" in text
