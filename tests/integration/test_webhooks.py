"""Webhooks from submission to receiver: real gateway, real deliverer, real Kafka, a real HTTP server as receiver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from local.kafka import LocalKafka
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome, encode_stored, outcome_key
from schemas.record import Origin
from schemas.response import InferenceResponse
from schemas.v2 import encode_response
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import BODY, ROW, path
from tests.integration.gateway_process import GatewayProcess
from tests.integration.webhook_calls import (
    SECRET,
    WebhookProcess,
    deliverer,
    ended,
    finish,
    publish,
    stands,
    submit,
    verified,
)
from tests.integration.webhook_receiver import Received, WebhookReceiver, unused_port

pytest_plugins = ["tests.integration.webhook_fixtures"]
pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def webhooks(kafka: LocalKafka, gateway: GatewayProcess) -> Iterator[WebhookProcess]:
    with deliverer(kafka.bootstrap, gateway) as process:
        yield process.joined()
        assert process.not_json() == []


@pytest.fixture
def receiver(webhooks: WebhookProcess) -> Iterator[WebhookReceiver]:
    """A receiver, and a process that delivers to it."""
    with WebhookReceiver() as server:
        yield server


def letters(webhooks: WebhookProcess, outcome: Outcome) -> dict[str, Any]:
    """Wait until the webhook of an outcome is given up; what the log says of it."""
    return webhooks.logged("give_webhook_up", origin=str(outcome.origin))


async def test_the_end_of_a_job_is_told_and_signed(
    http: httpx.AsyncClient,
    worker: EchoWorker,
    gateway: GatewayProcess,
    receiver: WebhookReceiver,
    webhooks: WebhookProcess,
) -> None:
    job, _ = await ended(http, worker, gateway, receiver.url("/hook?token=t0ken"))
    (received,) = await receiver.got()
    message = verified(SECRET, received)
    document = await stands(http, job, "delivered")
    assert message["type"] == "job.succeeded"
    data = message["data"]
    assert f"/v1/jobs/{data['id']}" == job
    assert (data["model"], data["state"]) == (worker.model, "succeeded")
    assert data["result"]["outputs"][0]["data"] == ROW
    assert data["links"]["result"] == f"{job}/result"
    assert message["timestamp"] == data["finished_at"]
    assert received.headers["webhook-id"] == data["id"]
    assert (document["attempts"], document["last_status"]) == (1, 204)
    assert (await http.get(job)).json()["state"] == "succeeded"
    assert not [line for line in webhooks.text() if "t0ken" in line or SECRET in line]


async def test_a_failed_job_is_told_with_its_error(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver
) -> None:
    error = InferenceError(ErrorCode.MODEL_FAILED, "it has a bad day")
    await ended(http, worker, gateway, receiver.url(), error=error)
    (received,) = await receiver.got()
    message = verified(SECRET, received)
    assert message["type"] == "job.failed"
    assert message["data"]["error"]["detail"] == "it has a bad day"
    assert "result" not in message["data"]


async def test_a_job_without_a_webhook_has_none(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async"})
    job = accepted.headers["location"]
    assert (await http.get(f"{job}/webhook")).json()["state"] == "none"
    again = await http.post(f"{job}/webhook/redeliver")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    await finish(worker, gateway.store)
    assert (await http.get(f"{job}/webhook")).json()["state"] == "none"
    again = await http.post(f"{job}/webhook/redeliver")
    assert (again.status_code, "without a webhook" in again.json()["detail"]) == (409, True)


async def test_an_endpoint_that_is_down_gets_the_webhook_once_it_is_up(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, webhooks: WebhookProcess
) -> None:
    port = unused_port()
    with WebhookReceiver(port=port) as closed:
        url = closed.url()
    job, outcome = await ended(http, worker, gateway, url)
    await asyncio.to_thread(webhooks.logged, "retry_webhook", origin=str(outcome.origin))
    pending = await stands(http, job, "pending")
    assert pending["next_attempt_at"]
    assert (await http.get(f"{job}/result")).json()["outputs"][0]["data"] == ROW
    with WebhookReceiver(port=port) as receiver:
        (received,) = await receiver.got()
        verified(SECRET, received)
        document = await stands(http, job, "delivered")
    assert document["attempts"] >= 2


async def test_each_attempt_has_the_same_id_and_body_and_its_own_signature(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver
) -> None:
    answers = iter([500, 404, (302, {"location": receiver.url("/elsewhere")}), 200])
    receiver.answer = lambda received: next(answers)
    job, _ = await ended(http, worker, gateway, receiver.url())
    received = await receiver.got(4)
    document = await stands(http, job, "delivered")
    assert document["attempts"] == 4
    assert {each.path for each in received} == {"/hook"}  # the redirect was not followed
    assert len({each.headers["webhook-id"] for each in received}) == 1
    assert len({each.body for each in received}) == 1
    for each in received:
        verified(SECRET, each)


async def test_retry_after_is_waited_for(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver
) -> None:
    answers = iter([(429, {"retry-after": "2"}), 200])
    receiver.answer = lambda received: next(answers)
    job, _ = await ended(http, worker, gateway, receiver.url())
    first, second = await receiver.got(2)
    assert second.at_s - first.at_s >= 1.9
    await stands(http, job, "delivered")


async def test_an_endpoint_down_for_long_loses_no_output_and_gets_it_by_redelivery(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, webhooks: WebhookProcess
) -> None:
    port = unused_port()
    with WebhookReceiver(port=port) as closed:
        url = closed.url()
    job, outcome = await ended(http, worker, gateway, url)
    given_up = await asyncio.to_thread(letters, webhooks, outcome)
    assert given_up["result"] == "exhausted"
    failed = await stands(http, job, "failed")
    assert failed["last_error"]
    assert (await http.get(job)).json()["state"] == "succeeded"
    assert (await http.get(f"{job}/result")).json()["outputs"][0]["data"] == ROW

    with WebhookReceiver(port=port) as receiver:
        again = await http.post(f"{job}/webhook/redeliver")
        assert (again.status_code, again.json()["state"]) == (202, "pending")
        (received,) = await receiver.got()
        verified(SECRET, received)
        document = await stands(http, job, "delivered")
    assert (document["attempts"], document["redeliveries"]) == (1, 1)


async def test_gone_is_the_end_until_somebody_asks_again(
    http: httpx.AsyncClient,
    worker: EchoWorker,
    gateway: GatewayProcess,
    receiver: WebhookReceiver,
    webhooks: WebhookProcess,
) -> None:
    receiver.answer = lambda received: 410
    job, outcome = await ended(http, worker, gateway, receiver.url())
    assert (await asyncio.to_thread(letters, webhooks, outcome))["result"] == "gone"
    document = await stands(http, job, "failed", last_status=410, attempts=1)
    assert "next_attempt_at" not in document
    receiver.answer = lambda received: 200
    await http.post(f"{job}/webhook/redeliver")
    await stands(http, job, "delivered", redeliveries=1)
    assert len(receiver.received) == 2


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/", "http://[::ffff:10.1.2.3]/", "http://169.254.169.254/latest", "x"]
)
async def test_a_plain_producers_record_cannot_reach_what_is_private(
    http: httpx.AsyncClient,
    worker: EchoWorker,
    gateway: GatewayProcess,
    receiver: WebhookReceiver,
    webhooks: WebhookProcess,
    url: str,
) -> None:
    job, outcome = await ended(http, worker, gateway, receiver.url())
    await stands(http, job, "delivered")
    # As if a producer had put this URL into the header, past the gateway: another request of the same model.
    origin = Origin(outcome.origin.topic, outcome.origin.partition, outcome.origin.offset + 1000)
    plain = Outcome("plain", JobState.SUCCEEDED, origin, outcome.value, outcome.header_length, 1, 2, 3, webhook=url)
    await publish(worker, plain)
    given_up = await asyncio.to_thread(letters, webhooks, plain)
    assert (given_up["result"], given_up["attempts"]) == ("refused", 1)


async def test_a_plain_producers_outcome_is_stored_so_that_its_webhook_can_be_redelivered(
    worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver, webhooks: WebhookProcess
) -> None:
    receiver.answer = lambda received: 503 if len(receiver.received) == 1 else 200
    origin = Origin(worker.topic, 1, 12345)
    value, length = encode_response(InferenceResponse(worker.model, "1", (), "", {}))
    plain = Outcome("plain", JobState.SUCCEEDED, origin, value, length, 1, 2, 3, webhook=receiver.url())
    await publish(worker, plain)
    first, second = await receiver.got(2)
    assert first.body == second.body
    assert verified(SECRET, second)["data"]["result"]["outputs"] == []
    assert open_store(str(gateway.store)).get(outcome_key(origin, EPOCH)) == encode_stored(plain)


async def test_a_repeated_result_is_told_once(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver
) -> None:
    job, outcome = await ended(http, worker, gateway, receiver.url("/first"))
    await stands(http, job, "delivered")
    await publish(worker, outcome)
    await ended(http, worker, gateway, receiver.url("/second"))  # after it in the same partition
    await receiver.got(path="/second")
    assert [each.path for each in receiver.received] == ["/first", "/second"]


async def test_a_slow_endpoint_does_not_hold_up_another(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver
) -> None:
    release = threading.Event()

    def wait(received: Received) -> int:
        release.wait(20)
        return 200

    with WebhookReceiver(wait) as slow:
        try:
            jobs = [await submit(http, worker, slow.url(f"/{number}")) for number in range(24)]
            job = await submit(http, worker, receiver.url())
            for _ in range(25):
                await finish(worker, gateway.store)
            await receiver.got()
            await stands(http, job, "delivered")
            assert 1 <= len(slow.received) <= 4  # as many as may be under way to one endpoint
        finally:
            release.set()
        for job in jobs:
            await stands(http, job, "delivered")


async def test_large_results_are_linked_not_inlined(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, receiver: WebhookReceiver
) -> None:
    rows = 8
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": [0.123456789] * 4 * rows}
    accepted = await http.post(
        path(worker),
        json={"inputs": [tensor]} | {"id": "i" * 70_000},
        headers={"prefer": "respond-async", "tidegate-webhook": receiver.url()},
    )
    assert accepted.status_code == 202, accepted.text
    await finish(worker, gateway.store)
    (received,) = await receiver.got()
    data = verified(SECRET, received)["data"]
    assert "result" not in data
    assert (await http.get(data["links"]["result"])).status_code == 200
