"""The job API as callers use it: many requests in one call, and results in their forms."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import httpx
import pytest

from schemas.outcome import Outcome, answer_key, decode_stored, outcome_key
from schemas.tensor import Tensor, pack_bytes_elements
from schemas.v2 import HEADER_LENGTH, decode_response
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import BODY, CLAIM_ABOVE_BYTES, ROW, path
from tests.integration.gateway_process import GatewayProcess
from tests.integration.job_calls import ASYNC, answer, store_outcome, submitted

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


# --- batches


async def test_each_request_of_a_batch_is_taken_or_refused_by_itself(
    http: httpx.AsyncClient, worker: EchoWorker
) -> None:
    good, version = BODY | {"parameters": {"priority": 3}}, {"requests": [BODY], "version": "1"}
    bad = {"inputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}
    body = {"requests": [BODY, bad, good, {"inputs": 7}, BODY]}
    response = await http.post(f"/v1/models/{worker.model}/jobs", json=body, headers={"tidegate-timeout-ms": "60000"})
    assert response.status_code == 202
    jobs = response.json()["jobs"]
    assert [each.get("state") or each["code"] for each in jobs] == [
        "queued",
        "invalid_request",
        "queued",
        "invalid_request",
        "queued",
    ]
    taken = [await worker.take() for _ in range(3)]
    assert [each.envelope.priority for each in taken] == [0, 3, 0]
    assert all(each.envelope.stored and each.envelope.start_by for each in taken)
    assert len({each.envelope.id for each in taken}) == 3
    assert len({each.origin.partition for each in taken}) == 1  # they left together
    for each in (jobs[0], jobs[2], jobs[4]):
        assert (await http.get(each["links"]["self"])).json()["state"] == "queued"
    older = await http.post(f"/v1/models/{worker.model}/jobs", json=version)
    assert older.status_code == 202
    assert (await worker.take()).envelope.model_version == "1"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"requests": []}, 400),
        ({"requests": "x"}, 400),
        ({"requests": [BODY] * 1001}, 413),
        ({"requests": [BODY], "version": "9"}, 404),
    ],
)
async def test_what_is_no_batch_is_refused_as_a_whole(
    http: httpx.AsyncClient, worker: EchoWorker, body: dict[str, Any], status: int
) -> None:
    response = await http.post(f"/v1/models/{worker.model}/jobs", json=body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


async def test_a_batch_for_an_unknown_model_is_not_found(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/models/nobody/jobs", json={"requests": [BODY]})).status_code == 404


async def test_a_batch_above_the_limit_of_a_record_travels_through_the_store(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    large = BODY | {"parameters": {"padding": "p" * CLAIM_ABOVE_BYTES}}
    response = await http.post(f"/v1/models/{worker.model}/jobs", json={"requests": [large, BODY, large]})
    assert [each["state"] for each in response.json()["jobs"]] == ["queued"] * 3
    claims = [each.envelope.claim for each in [await worker.take() for _ in range(3)]]
    assert sorted(map(bool, claims)) == [False, True, True]
    assert all(open_store(str(gateway.store)).get(claim) for claim in claims if claim)


# --- headers that say how a request is run


async def test_clocks_and_priority_come_by_headers(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    own = {"timeout": 1, "deadline_ms": 1, "priority": 9}  # headers win
    sent = ASYNC | {
        "tidegate-timeout-ms": "5000",
        "tidegate-deadline-ms": "9000",
        "tidegate-execution-timeout-ms": "700",
        "tidegate-priority": "2",
    }
    accepted = await http.post(path(worker), json=BODY | {"parameters": own}, headers=sent)
    assert accepted.status_code == 202
    taken = await worker.take()
    envelope = taken.envelope
    assert envelope.start_by is not None
    assert envelope.deadline is not None
    assert abs(envelope.start_by.at_ms - taken.created_ms - 5000) < 1000
    assert abs(envelope.deadline.at_ms - taken.created_ms - 9000) < 1000
    assert (envelope.execution_timeout_ms, envelope.priority) == (700, 2)


# --- results


async def test_a_result_comes_in_the_form_that_is_liked_best(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    store_outcome(gateway, worker.outcome(taken))
    result = f"{job}/result"
    plain = await http.get(result)
    assert plain.json()["outputs"][0]["data"] == ROW
    raw = await http.get(result, headers={"accept": "application/json;q=0.5, application/octet-stream"})
    assert decode_response(raw.content, int(raw.headers[HEADER_LENGTH])).outputs[0].to_list() == ROW
    assert plain.headers["etag"] != raw.headers["etag"]
    same = await http.get(result, headers={"if-none-match": plain.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    head = await http.head(result)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", plain.headers["etag"])
    assert int(head.headers["content-length"]) == len(plain.content)
    refused = await http.get(result, headers={"accept": "text/html"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


async def test_a_single_output_is_its_bytes(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    tensors = (
        Tensor("x", "FP32", (1, 4), struct.pack("<4f", *ROW)),
        Tensor("image", "BYTES", (1,), pack_bytes_elements([b"\xff\xd8\xff"])),
        Tensor("words", "BYTES", (2,), pack_bytes_elements([b"a", b"bc"])),
    )
    store_outcome(gateway, answer(taken, tensors))
    numbers = await http.get(f"{job}/result/outputs/x")
    assert struct.unpack("<4f", numbers.content) == tuple(ROW)
    assert (numbers.headers["tidegate-datatype"], numbers.headers["tidegate-shape"]) == ("FP32", "[1,4]")
    assert (await http.get(f"{job}/result/outputs/image")).content == b"\xff\xd8\xff"
    assert (await http.get(f"{job}/result/outputs/words")).content == pack_bytes_elements([b"a", b"bc"])
    missing = await http.get(f"{job}/result/outputs/nothing")
    assert (missing.status_code, missing.json()["remedy"]) == (400, "use one of x, image, words")
    refused = await http.get(f"{job}/result/outputs/x", headers={"accept": "application/json"})
    assert refused.status_code == 406


async def test_a_result_that_json_cannot_hold_comes_raw_or_is_not_acceptable(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    store_outcome(gateway, answer(taken, (Tensor("image", "BYTES", (1,), pack_bytes_elements([b"\xff"])),)))
    raw = await http.get(f"{job}/result")  # accepts anything
    assert raw.headers["content-type"] == "application/octet-stream"
    refused = await http.get(f"{job}/result", headers={"accept": "application/json"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")


async def test_a_large_result_lies_by_itself_and_is_found_by_its_job(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    outcome = worker.outcome(taken)
    key = answer_key(taken.origin, EPOCH, "run-1")
    open_store(str(gateway.store)).put(key, outcome.value)
    claimed = Outcome(
        outcome.id, outcome.state, outcome.origin, b"", outcome.header_length, 1, 2, outcome.finished_ms, claim=key
    )
    store_outcome(gateway, claimed)
    assert (await http.get(job)).json()["state"] == "succeeded"
    assert (await http.get(f"{job}/result")).json()["outputs"][0]["data"] == ROW
    open_store(str(gateway.store)).delete(key)
    gone = await http.get(f"{job}/result")
    assert (gone.status_code, gone.json()["code"]) == (410, "result_expired")


async def test_a_late_reply_that_claims_its_value_is_kept_as_it_is(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    spent = await http.post(path(worker), json=BODY, headers={"prefer": "wait=0"})
    taken = await worker.take()
    key = answer_key(taken.origin, EPOCH, "run-1")
    open_store(str(gateway.store)).put(key, worker.outcome(taken).value)
    await worker.reply(taken, claim=key)
    await asyncio.to_thread(gateway.logged, "keep_outcome", id=taken.envelope.id)
    stored = decode_stored(open_store(str(gateway.store)).get(outcome_key(taken.origin, EPOCH)))
    assert (stored.claim, bytes(stored.value)) == (key, b"")
    result = await http.get(f"{spent.headers['location']}/result")
    assert result.json()["outputs"][0]["data"] == ROW


async def test_a_result_past_its_retention_is_gone_although_it_is_still_stored(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    outcome = worker.outcome(taken)
    day_ms = 24 * 3600 * 1000
    old = Outcome(
        outcome.id,
        outcome.state,
        outcome.origin,
        outcome.value,
        outcome.header_length,
        1,
        2,
        outcome.finished_ms - day_ms - 1000,
    )
    store_outcome(gateway, old)
    for link in ("", "/result", "/result/outputs/x", "/events"):
        response = await http.get(job + link)
        assert (response.status_code, response.json()["code"]) == (410, "result_expired")


async def test_a_batch_of_which_all_are_bad_is_answered_for_each(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    response = await http.post(f"/v1/models/{worker.model}/jobs", json={"requests": [{"inputs": []}, {"inputs": 7}]})
    assert response.status_code == 202
    assert [each["code"] for each in response.json()["jobs"]] == ["invalid_request", "invalid_request"]
