"""Deliverers that come, go and are killed: no webhook is lost, and a repeat is recognised by its id."""

from __future__ import annotations

import asyncio
import signal
import threading
import uuid
from pathlib import Path

import httpx
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from local.kafka import LocalKafka
from tests.integration.echo_worker import PARTITIONS, EchoWorker
from tests.integration.gateway_calls import worker_of
from tests.integration.gateway_process import GatewayProcess
from tests.integration.webhook_calls import (
    SECRET,
    SETTINGS,
    WebhookProcess,
    deliverer,
    ended,
    stands,
    submit,
    verified,
)
from tests.integration.webhook_receiver import Received, WebhookReceiver, unused_port
from tests.integration.worker_process import Installation

pytest_plugins = ["tests.integration.webhook_fixtures"]
pytestmark = pytest.mark.kafka


class Gate:
    """Holds a receiver's answers back until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def __call__(self, received: Received) -> int:
        self._open.wait(20)
        return 200

    def open(self) -> None:
        self._open.set()


async def test_a_deliverer_killed_in_an_attempt_loses_nothing(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    gate = Gate()
    with WebhookReceiver(gate) as receiver, WebhookReceiver() as other:
        with deliverer(kafka.bootstrap, gateway) as first:
            job, _ = await ended(http, worker, gateway, receiver.url(), partition=0)
            await receiver.got()
            await stands(http, (await ended(http, worker, gateway, other.url(), partition=1))[0], "delivered")
            await committed(worker, partition=1)  # what could be committed of the other partition is by now
            first.process.kill()
        gate.open()
        with deliverer(kafka.bootstrap, gateway):
            received = await receiver.got(2)
            await stands(http, job, "delivered")
        verified(SECRET, received[1])
        assert received[0].headers["webhook-id"] == received[1].headers["webhook-id"]
        assert received[0].body == received[1].body


async def committed(worker: EchoWorker, *, partition: int) -> None:
    """Wait until the deliverers have committed something of a partition of the worker's results."""
    admin = AIOKafkaAdminClient(bootstrap_servers=worker.bootstrap)
    await admin.start()
    place = TopicPartition(worker.topics.results(worker.model), partition)
    async with asyncio.timeout(30):
        while True:
            found = await admin.list_consumer_group_offsets(worker.topics.group("webhooks"))
            if place in found and found[place].offset > 0:
                break
            await asyncio.sleep(0.1)
    await admin.close()


async def test_a_retry_outlives_its_deliverer(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    port = unused_port()
    with WebhookReceiver(port=port) as closed:
        url = closed.url()
    with deliverer(kafka.bootstrap, gateway, webhook_retry_s="2 2 2 2 2 2 2 2 2 2") as first:
        job, outcome = await ended(http, worker, gateway, url)
        await asyncio.to_thread(first.logged, "retry_webhook", origin=str(outcome.origin))
        first.process.kill()
    with WebhookReceiver(port=port) as receiver, deliverer(kafka.bootstrap, gateway):
        (received,) = await receiver.got()
        verified(SECRET, received)
        document = await stands(http, job, "delivered")
        assert document["attempts"] >= 2


async def test_a_stop_waits_for_the_attempt_under_way(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    gate = Gate()
    with WebhookReceiver(gate) as receiver:
        with deliverer(kafka.bootstrap, gateway) as first:
            job, _ = await ended(http, worker, gateway, receiver.url("/once"))
            await receiver.got()
            first.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(first.logged, "drain", step="webhooks: finish attempts under way", under_way=1)
            async with httpx.AsyncClient(base_url=first.url) as client:
                assert (await client.get("/v2/health/ready")).status_code == 503
            gate.open()
            assert await asyncio.to_thread(first.ended) == 0
        await stands(http, job, "delivered")
        with deliverer(kafka.bootstrap, gateway):
            await stands(http, (await ended(http, worker, gateway, receiver.url("/after")))[0], "delivered")
        assert len(await receiver.got(path="/once")) == 1


async def test_two_deliverers_share_the_work(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    with (
        WebhookReceiver() as receiver,
        deliverer(kafka.bootstrap, gateway) as first,
        deliverer(kafka.bootstrap, gateway) as second,
    ):
        async with asyncio.timeout(40):
            done: set[bool] = set()
            number = 0
            while len(done) < 2:
                job, outcome = await ended(http, worker, gateway, receiver.url(), partition=number % PARTITIONS)
                await stands(http, job, "delivered")
                number += 1
                delivered = (f'"origin": "{outcome.origin}"', '"deliver_webhook"')
                for which, process in enumerate((first, second)):
                    if any(all(part in line for part in delivered) for line in process.text()):
                        done.add(bool(which))
        assert len({each.headers["webhook-id"] for each in receiver.received}) == number


async def test_dead_letters_are_delivered_again_by_a_command(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    answers = {"status": 410}
    with (
        WebhookReceiver(lambda received: answers["status"]) as receiver,
        deliverer(kafka.bootstrap, gateway) as running,
    ):
        jobs = [(await ended(http, worker, gateway, receiver.url(f"/{number}")))[0] for number in range(3)]
        for job in jobs:
            await stands(http, job, "failed")
        answers["status"] = 200
        await http.post(f"{jobs[2]}/webhook/redeliver")
        await stands(http, jobs[2], "delivered")

        assert await redelivered(kafka, gateway, "--since", "2h", "--until", "1h") == 0
        assert await redelivered(kafka, gateway, "--since", "2h") >= 2
        for job in jobs[:2]:
            await stands(http, job, "delivered", redeliveries=1)
        assert len([each for each in receiver.received if each.path == "/2"]) == 2  # it had been taken already
        assert await redelivered(kafka, gateway, "--since", "2h") == 0
        running.terminate()
        assert await asyncio.to_thread(running.ended) == 0


async def redelivered(kafka: LocalKafka, gateway: GatewayProcess, *options: str) -> int:
    """Run the command; how many it says will be delivered again."""
    process = deliverer(kafka.bootstrap, gateway)
    process.arguments = ("webhooks", "--redeliver-dead", *options)
    return await asyncio.to_thread(process.count)


async def test_a_gateway_delivers_in_its_own_process(kafka: LocalKafka, tmp_path: Path) -> None:
    prefix = f"t{uuid.uuid4().hex[:6]}"
    settings = SETTINGS | {"webhooks_in_process": "true", "webhook_base_url": "https://inference.example.com/"}
    gate = Gate()
    with GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path, **settings) as gateway:
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as worker, gateway.client() as http:
            with WebhookReceiver(gate) as receiver:
                job, _ = await ended(http, worker, gateway, receiver.url())
                (received,) = await receiver.got()
                links = verified(SECRET, received)["data"]["links"]
                assert links["self"] == f"https://inference.example.com{job}"
                metrics = (await http.get("/metrics")).text
                assert "tidegate_webhook_oldest_seconds" in metrics
                gateway.terminate()
                await asyncio.to_thread(gateway.logged, "drain", step="webhooks: finish attempts under way")
                gate.open()
                assert await asyncio.to_thread(gateway.ended) == 0


async def test_a_real_workers_answers_are_told(kafka: LocalKafka, tmp_path: Path) -> None:
    installation = Installation(kafka.bootstrap, f"t{uuid.uuid4().hex[:6]}", tmp_path)
    installation.add_device("dev")
    settings = SETTINGS | {"webhooks_in_process": "true"}
    with (
        WebhookReceiver() as receiver,
        GatewayProcess(
            bootstrap=kafka.bootstrap, prefix=installation.prefix, store=installation.store, **settings
        ) as gateway,
    ):
        async with installation.worker() as worker, gateway.client() as http:
            await worker.ready()
            await asyncio.to_thread(gateway.logged, "learn_model", model="dev")
            tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.5]}
            headers = {"prefer": "respond-async", "tidegate-webhook": receiver.url()}
            accepted = await http.post("/v2/models/dev/infer", json={"inputs": [tensor]}, headers=headers)
            (received,) = await receiver.got()
            data = verified(SECRET, received)["data"]
            assert f"/v1/jobs/{data['id']}" == accepted.headers["location"]
            assert data["result"]["outputs"][0]["data"] == [1.5, 2.5]
            assert (await http.get(data["links"]["self"])).json()["state"] == "succeeded"


async def test_what_is_delivered_is_counted(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    answers = iter([500, 200, 410])
    with WebhookReceiver(lambda received: next(answers)) as receiver, deliverer(kafka.bootstrap, gateway) as process:
        process.joined()
        await stands(http, (await ended(http, worker, gateway, receiver.url()))[0], "delivered")
        await stands(http, (await ended(http, worker, gateway, receiver.url()))[0], "failed")
        async with httpx.AsyncClient(base_url=process.url) as client:
            assert (await client.get("/v2/health/ready")).json() == {"ready": True}
            metrics = (await client.get("/metrics")).text
    for sample in (
        'tidegate_webhook_deliveries_total{result="delivered"} 1.0',
        'tidegate_webhook_deliveries_total{result="gone"} 1.0',
        'tidegate_webhook_attempts_total{result="5xx"} 1.0',
        'tidegate_webhook_attempts_total{result="2xx"} 1.0',
        "tidegate_webhook_endpoints_down 0.0",
    ):
        assert sample in metrics, metrics


async def test_a_job_submitted_while_nobody_delivers_is_told_later(
    kafka: LocalKafka, http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    with WebhookReceiver() as receiver:
        job, _ = await ended(http, worker, gateway, receiver.url())
        assert (await http.get(f"{job}/webhook")).json()["state"] == "pending"
        await submit(http, worker, receiver.url())
        process: WebhookProcess
        with deliverer(kafka.bootstrap, gateway) as process:
            process.joined()
            await receiver.got()
            await stands(http, job, "delivered")
