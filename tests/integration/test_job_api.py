"""The job API as callers use it: waiting, events, cancelling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from local.kafka import LocalKafka
from schemas.cancellation import cancellation_key, decode_cancellation
from schemas.errors import ErrorCode, InferenceError
from schemas.progress import Progress
from tests.integration.control_reader import control_records
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import BODY, ROW, path
from tests.integration.gateway_process import GatewayProcess
from tests.integration.job_calls import done, store_outcome, submitted

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


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
