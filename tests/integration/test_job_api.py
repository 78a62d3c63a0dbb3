"""The job API as callers use it: waiting, events, cancelling, batches, results in their forms."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from local.kafka import LocalKafka
from schemas.cancellation import cancellation_key, decode_cancellation
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome, answer_key, decode_stored, encode_stored, outcome_key
from schemas.progress import Progress
from schemas.response import InferenceResponse
from schemas.tensor import Tensor, pack_bytes_elements
from schemas.v2 import HEADER_LENGTH, decode_response, encode_response
from store import open_store
from tests.integration.control_reader import control_records
from tests.integration.echo_worker import EPOCH, EchoWorker, Taken
from tests.integration.gateway_calls import BODY, CLAIM_ABOVE_BYTES, ROW, path
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

ASYNC = {"prefer": "respond-async"}


async def submitted(http: httpx.AsyncClient, worker: EchoWorker, **headers: str) -> tuple[str, Taken]:
    """A job's path, and what the worker has of it."""
    accepted = await http.post(path(worker), json=BODY, headers=ASYNC | headers)
    assert accepted.status_code == 202, accepted.text
    return accepted.headers["location"], await worker.take()


def store_outcome(gateway: GatewayProcess, outcome: Outcome) -> bool:
    store = open_store(str(gateway.store))
    return store.put(outcome_key(outcome.origin, EPOCH), encode_stored(outcome), if_absent=True)


def answer(taken: Taken, tensors: tuple[Tensor, ...]) -> Outcome:
    now_ms = time.time_ns() // 1_000_000
    value, length = encode_response(InferenceResponse("m", "1", tensors))
    return Outcome(taken.envelope.id, JobState.SUCCEEDED, taken.origin, value, length, taken.created_ms, now_ms, now_ms)


async def done(worker: EchoWorker, taken: Taken) -> None:
    """The worker acknowledges the request."""
    offset = taken.origin.offset
    await worker.commit(taken.origin.partition, Progress(0, offset + 1, ((offset, offset + 1),)))


# --- waiting


async def test_a_long_poll_answers_when_the_job_ends(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    polls = [asyncio.ensure_future(http.get(job, params={"wait": 20})) for _ in range(3)]
    result = asyncio.ensure_future(http.get(f"{job}/result", params={"wait": 20}))
    started = asyncio.ensure_future(http.get(job, params={"wait": 20, "wait_for": "started"}))
    await worker.commit(taken.origin.partition, Progress(0, taken.origin.offset + 1))
    assert (await started).json()["state"] == "running"
    assert not any(poll.done() for poll in polls)
    store_outcome(gateway, worker.outcome(taken))
    await done(worker, taken)
    assert {(await poll).json()["state"] for poll in polls} == {"succeeded"}
    assert (await result).json()["outputs"][0]["data"] == ROW


async def test_a_long_poll_that_runs_out_tells_the_state_and_when_to_come_again(
    http: httpx.AsyncClient, worker: EchoWorker
) -> None:
    job, _ = await submitted(http, worker)
    response = await http.get(job, params={"wait": "0.3"})
    assert (response.status_code, response.json()["state"], response.headers["retry-after"]) == (200, "queued", "1")
    late = await http.get(f"{job}/result", params={"wait": "0.3"})
    assert (late.status_code, late.json()["state"]) == (202, "queued")
    queries: list[dict[str, str]] = [{"wait": "soon"}, {"wait": "1", "wait_for": "luck"}]
    for query in queries:
        assert (await http.get(job, params=query)).status_code == 400


async def test_a_document_has_an_etag_that_changes_with_the_state(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    first = await http.get(job)
    same = await http.get(job, headers={"if-none-match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    store_outcome(gateway, worker.outcome(taken))
    changed = await http.get(job, headers={"if-none-match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["state"], changed.json()["attempt"]) == (200, "succeeded", 1)


async def test_many_jobs_are_asked_about_in_one_call(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    jobs = [await submitted(http, worker) for _ in range(3)]
    ids = [job.rpartition("/")[2] for job, _ in jobs]
    store_outcome(gateway, worker.outcome(jobs[1][1]))
    response = await http.post("/v1/jobs/status", json={"ids": [*ids, "nonsense"]})
    told = response.json()["jobs"]
    assert [each.get("state") or each["code"] for each in told] == ["queued", "succeeded", "queued", "job_not_found"]
    assert [each["id"] for each in told[:3]] == ids
    waiting = asyncio.ensure_future(http.post("/v1/jobs/status", params={"wait": 20}, json={"ids": [ids[0], ids[2]]}))
    store_outcome(gateway, worker.outcome(jobs[2][1]))
    await done(worker, jobs[2][1])
    assert "succeeded" in [each["state"] for each in (await waiting).json()["jobs"]]


@pytest.mark.parametrize(("body", "status"), [("{}", 400), ('{"ids": []}', 400), ("[", 400), ('{"ids": [1]}', 400)])
async def test_a_question_about_no_jobs_is_refused(http: httpx.AsyncClient, body: str, status: int) -> None:
    response = await http.post("/v1/jobs/status", content=body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


async def test_a_question_about_too_many_jobs_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.post("/v1/jobs/status", json={"ids": ["x"] * 1001})).status_code == 413


async def test_a_gateway_that_drains_lets_those_go_who_wait(
    kafka: LocalKafka, gateway: GatewayProcess, worker: EchoWorker, http: httpx.AsyncClient
) -> None:
    job, _ = await submitted(http, worker)
    with GatewayProcess(bootstrap=kafka.bootstrap, prefix=gateway.prefix, store=gateway.store) as leaving:
        leaving.ready()
        async with leaving.client() as client, client.stream("GET", f"{job}/events") as stream:
            poll = asyncio.ensure_future(client.get(job, params={"wait": 25}))
            told = blocks(stream)
            assert (await anext(told))["event"] == "position"
            assert (await client.get(job, params={"wait": "0.3"})).json()["state"] == "queued"
            leaving.terminate()
            assert (await poll).json()["state"] == "queued"
            assert [block async for block in told] == []
        assert await asyncio.to_thread(leaving.ended) == 0


# --- events


async def events(http: httpx.AsyncClient, url: str, **headers: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(id, event, data) of each event of a stream until it ends."""
    async with http.stream("GET", url, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [(each["id"], each["event"], json.loads(each["data"])) async for each in blocks(response)]


async def blocks(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    block: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if "data" in block:  # else a comment
                yield block
            block = {}
            continue
        name, _, value = line.partition(": ")
        block[name] = value


async def test_events_tell_a_job_from_its_position_to_its_end_and_go_on_anywhere(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    stream = asyncio.ensure_future(events(http, f"{job}/events"))
    negotiated = asyncio.ensure_future(events(http, job, accept="text/event-stream"))
    assert (await http.get(job, params={"wait": "0.5"})).json()["state"] == "queued"  # both streams have begun by now
    started = asyncio.ensure_future(http.get(job, params={"wait": 20, "wait_for": "started"}))
    await worker.commit(taken.origin.partition, Progress(0, taken.origin.offset + 1))
    await started
    store_outcome(gateway, worker.outcome(taken))
    await done(worker, taken)
    told = await stream
    position = f"position-{taken.origin.offset}"
    assert [(id_, event) for id_, event, _ in told] == [
        (position, "position"),
        ("started", "started"),
        ("finished", "finished"),
    ]
    assert [data["state"] for _, _, data in told] == ["queued", "running", "succeeded"]
    assert [event for _, event, _ in await negotiated] == ["position", "started", "finished"]
    after = await events(http, f"{job}/events", **{"last-event-id": position})
    assert [event for _, event, _ in after] == ["started", "finished"]
    after = await events(http, f"{job}/events", **{"last-event-id": "started"})
    assert [event for _, event, _ in after] == ["finished"]
    nothing = await http.get(f"{job}/events", headers={"last-event-id": "finished"})
    assert (nothing.status_code, nothing.content) == (204, b"")


async def test_an_event_stream_of_no_job_is_a_problem(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/jobs/nonsense/events")).status_code == 404


# --- cancelling


async def test_a_queued_job_is_cancelled_at_once_and_the_workers_are_told(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    waiting = asyncio.ensure_future(http.get(job, params={"wait": 20}))
    first = await http.delete(job)
    assert (first.status_code, first.json()["state"]) == (200, "cancelled")
    assert first.json()["error"]["code"] == "cancelled"
    assert (await waiting).json()["state"] == "cancelled"
    again = await http.delete(job)
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await http.get(job)).json() == first.json()
    result = await http.get(f"{job}/result")
    assert (result.status_code, result.json()["code"]) == (499, "cancelled")
    assert not store_outcome(gateway, worker.outcome(taken))  # the first recorded end stands
    key = cancellation_key(taken.origin, EPOCH)
    (record, *_) = [each for each in await control_records(worker) if each.key == key]
    change = decode_cancellation(record.key, record.value)
    assert change is not None
    assert change[:2] == (taken.origin, EPOCH)
    assert change[2] is not None


async def test_a_finished_job_is_not_cancelled_and_says_how_it_ended(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    job, taken = await submitted(http, worker)
    error = InferenceError(ErrorCode.MODEL_FAILED, "no good")
    store_outcome(gateway, worker.outcome(taken, error=error))
    response = await http.delete(job)
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert response.json()["job"]["state"] == "failed"
    assert (await http.get(job)).json()["state"] == "failed"
    assert not [each for each in await control_records(worker) if each.key == cancellation_key(taken.origin, EPOCH)]


async def test_a_wait_that_ran_out_is_cancelled_too_and_its_late_answer_changes_nothing(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    spent = await http.post(path(worker), json=BODY, headers={"prefer": "wait=0"})
    job, taken = spent.headers["location"], await worker.take()
    assert (await http.delete(job)).json()["state"] == "cancelled"
    await worker.reply(taken)
    await done(worker, taken)
    kept, other = await submitted(http, worker)
    store_outcome(gateway, worker.outcome(other))
    assert (await http.get(kept)).json()["state"] == "succeeded"
    assert (await http.get(job)).json()["state"] == "cancelled"


async def test_cancelling_again_after_the_request_is_done_leaves_no_message_behind(
    http: httpx.AsyncClient, worker: EchoWorker
) -> None:
    job, taken = await submitted(http, worker)
    await http.delete(job)
    await done(worker, taken)
    assert (await http.delete(job)).status_code == 200
    key = cancellation_key(taken.origin, EPOCH)
    assert len([each for each in await control_records(worker) if each.key == key]) == 1


async def test_a_job_that_nobody_knows_is_not_cancelled(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    assert (await http.delete("/v1/jobs/nonsense")).status_code == 404
    job, taken = await submitted(http, worker)
    await done(worker, taken)  # and its outcome is gone
    assert (await http.delete(job)).status_code == 410


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


async def test_clocks_priority_and_webhook_come_by_headers(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    own = {"timeout": 1, "deadline_ms": 1, "priority": 9}  # headers win
    sent = ASYNC | {
        "tidegate-timeout-ms": "5000",
        "tidegate-deadline-ms": "9000",
        "tidegate-execution-timeout-ms": "700",
        "tidegate-priority": "2",
        "tidegate-webhook": "https://example.org/hook",
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
    assert envelope.webhook == "https://example.org/hook"
    refused = await http.post(path(worker), json=BODY, headers={"tidegate-webhook": "https://example.org/hook"})
    assert (refused.status_code, refused.json()["field"]) == (400, "tidegate-webhook")


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
