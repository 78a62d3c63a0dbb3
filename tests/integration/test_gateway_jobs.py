"""Jobs of the gateway: asynchronous ones, waits that run out, results and their loss."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, decode_stored, encode_stored, outcome_key
from schemas.progress import Progress
from schemas.v2 import HEADER_LENGTH, decode_response
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import BODY, ROW, answered, path
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


async def test_an_asynchronous_job_from_queued_to_its_result(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    assert accepted.status_code == 202
    assert accepted.headers["preference-applied"] == "respond-async"
    job = accepted.headers["location"]
    assert accepted.json()["state"] == "queued"
    assert job == f"/v1/jobs/{accepted.json()['id']}"
    taken = await worker.take()
    assert taken.envelope.stored
    assert taken.envelope.reply_to is None

    document = (await http.get(job)).json()
    assert (document["state"], document["position"], document["model"]) == ("queued", 0, worker.model)
    assert document["created_at"]
    waiting = await http.get(f"{job}/result")
    assert (waiting.status_code, waiting.headers["retry-after"]) == (202, "1")

    await worker.commit(taken.origin.partition, Progress(0, taken.origin.offset + 1))
    assert (await http.get(job)).json()["state"] == "running"

    outcome = worker.outcome(taken)
    open_store(str(gateway.store)).put(outcome_key(taken.origin, EPOCH), encode_stored(outcome))
    done = (await http.get(job)).json()
    assert done["state"] == "succeeded"
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]
    result = await http.get(done["links"]["result"])
    assert result.json()["outputs"][0]["data"] == ROW
    raw = await http.get(f"{job}/result", headers={"accept": "application/octet-stream"})
    assert decode_response(raw.content, int(raw.headers[HEADER_LENGTH])).outputs[0].to_list() == ROW


async def told(http: httpx.AsyncClient, job: str, field: str, value: Any) -> dict[str, Any]:
    """The document of a job once it tells this; the gateway reads it from the control topic in a moment."""
    async with asyncio.timeout(20):
        while (document := (await http.get(job, params={"wait": "0.02"})).json()).get(field) != value:
            pass
        return dict(document)


async def test_a_queued_job_tells_what_it_waits_for(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    job = accepted.headers["location"]
    assert (await told(http, job, "reason", "no worker"))["eta_s"] is None
    await worker.tell_loading(0.4)
    await told(http, job, "reason", "model loading, 40% fetched")
    await worker.tell_loading(None)
    await worker.report(state="loading")
    await told(http, job, "reason", "model loading")
    await worker.report()
    await told(http, job, "reason", None)  # it is next


async def test_a_queued_job_tells_when_its_turn_may_come(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    jobs: list[dict[int, str]] = [{}, {}]
    while len(jobs[0]) < 3:
        accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
        taken = await worker.take()
        jobs[taken.origin.partition][taken.origin.offset] = accepted.headers["location"]
    await worker.commit(1, Progress(100, 100))  # of the other partition all is done
    await worker.report(ago_ms=2000)
    await worker.report(answered=8)  # 4 per second
    document = await told(http, jobs[0][2], "reason", "behind 2 requests")
    async with asyncio.timeout(20):
        while (eta_s := (await http.get(jobs[0][2], params={"wait": "0.02"})).json()["eta_s"]) is None:
            pass
    assert document["position"] == 2
    assert 0.3 < eta_s < 0.8


async def test_a_pool_whose_workers_crash_and_crash_again_says_so(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    for life in range(3):  # as runpod-mcp#62: what looks like a lack of workers is a crash loop
        await worker.report(state="loading", ago_ms=30_000 - 10_000 * life, worker=f"life-{life}")
    reason = "crash-looping: workers of the pool start again and again, and none has answered anything"
    await told(http, accepted.headers["location"], "reason", reason)


async def test_a_queued_job_tells_how_many_are_before_it(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    jobs: list[dict[int, str]] = [{}, {}]
    while min(map(len, jobs)) < 4:
        accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
        taken = await worker.take()
        jobs[taken.origin.partition][taken.origin.offset] = accepted.headers["location"]
    await worker.commit(1, Progress(1, 1, ((2, 3),)))
    assert (await http.get(jobs[0][3])).json()["position"] == 3
    assert (await http.get(jobs[1][3])).json()["position"] == 1


async def test_a_failed_job_tells_its_error(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    taken = await worker.take()
    outcome = worker.outcome(taken, error=InferenceError(ErrorCode.MODEL_FAILED, "no good"))
    open_store(str(gateway.store)).put(outcome_key(taken.origin, EPOCH), encode_stored(outcome))
    document = (await http.get(accepted.headers["location"])).json()
    assert (document["state"], document["error"]["detail"]) == ("failed", "no good")
    result = await http.get(document["links"]["result"])
    assert (result.status_code, result.json()["code"]) == (500, "model_failed")


async def test_a_result_past_its_retention_is_gone(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    taken = await worker.take()
    await worker.commit(taken.origin.partition, Progress(taken.origin.offset + 1, taken.origin.offset + 1))
    for link in ("", "/result"):
        response = await http.get(accepted.headers["location"] + link)
        assert (response.status_code, response.json()["code"]) == (410, "result_expired")


async def test_a_wait_that_runs_out_gives_a_job_whose_late_answer_is_kept(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    spent = await http.post(path(worker), json=BODY, headers={"prefer": "wait=0"})
    assert spent.status_code == 202
    assert spent.headers["preference-applied"] == "wait=0"
    job = spent.headers["location"]
    taken = await worker.take()
    assert taken.envelope.reply_to is not None
    await worker.commit(taken.origin.partition, Progress(taken.origin.offset + 1, taken.origin.offset + 1))
    assert (await http.get(job)).json()["state"] == "running"  # answered, and on its way to us
    await worker.reply(taken)
    await asyncio.to_thread(gateway.logged, "keep_outcome", id=taken.envelope.id)
    assert (await http.get(f"{job}/result")).json()["outputs"][0]["data"] == ROW


async def test_respond_async_with_a_wait_waits_first(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    prefer = {"prefer": "respond-async, wait=20"}
    response, _ = await answered(worker, http.post(path(worker), json=BODY, headers=prefer))
    assert (response.status_code, response.headers["preference-applied"]) == (200, "wait=20")
    spent = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async, wait=0"})
    assert (spent.status_code, spent.headers["preference-applied"]) == (202, "respond-async, wait=0")


async def test_the_answer_to_a_caller_who_left_is_kept(worker: EchoWorker, gateway: GatewayProcess) -> None:
    body = json.dumps(BODY).encode()
    head = f"POST {path(worker)} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + body)
        taken = await worker.take()
    await asyncio.sleep(0.6)  # not for synchronisation: whoever leaves sooner is not looked for
    await worker.reply(taken)
    await asyncio.to_thread(gateway.logged, "keep_outcome", id=taken.envelope.id)
    stored = decode_stored(open_store(str(gateway.store)).get(outcome_key(taken.origin, EPOCH)))
    assert stored.state is JobState.SUCCEEDED


@pytest.mark.parametrize("forged", ["x", "A" * 60, "AaBbCc-_", "..%2F..%2Fetc%2Fpasswd"])
async def test_a_forged_job_id_is_not_found(http: httpx.AsyncClient, forged: str) -> None:
    for link in ("", "/result"):
        assert (await http.get(f"/v1/jobs/{forged}{link}")).status_code == 404
