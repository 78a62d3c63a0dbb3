"""Lives and deaths of the gateway: restarts, kills, drains, Kafka absent and gone and back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import sys
import time
import uuid
from typing import Any

import httpx
import pytest

from local.kafka import LocalKafka
from schemas.outcome import encode_stored, outcome_key
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import BODY, ROW, answered, path, records_in, worker_of
from tests.integration.gateway_process import JOB_KEY, GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka


async def test_a_job_survives_a_restart_of_the_gateway(kafka: LocalKafka, prefix: str, tmp_path: Any) -> None:
    def process() -> GatewayProcess:
        return GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path, reply_partitions=1)

    with process() as first:
        first.ready()
        async with worker_of(kafka.bootstrap, first) as echo, first.client() as client:
            accepted = await client.post(path(echo), json=BODY, headers={"prefer": "respond-async"})
            late = await client.post(path(echo), json=BODY, headers={"prefer": "wait=0"})
            taken = {each.origin: each for each in [await echo.take(), await echo.take()]}
            first.process.kill()  # no goodbye: its partition of the replies is left behind as it is
            first.ended()
            for each in taken.values():
                if each.envelope.stored:
                    key = outcome_key(each.origin, EPOCH)
                    open_store(str(tmp_path)).put(key, encode_stored(echo.outcome(each)))
                else:
                    orphan = await echo.reply(each)
            with process() as second:
                second.ready()
                await asyncio.to_thread(second.logged, "keep_outcome", id=orphan.id)
                async with second.client() as again:
                    for response in (accepted, late):
                        result = await again.get(f"{response.headers['location']}/result")
                        assert result.json()["outputs"][0]["data"] == ROW


async def test_a_drain_answers_who_waits_and_leaves_the_rest_to_other_gateways(
    kafka: LocalKafka, gateway: GatewayProcess
) -> None:
    leaving = GatewayProcess(bootstrap=kafka.bootstrap, prefix=gateway.prefix, store=gateway.store, drain_s=4)
    with leaving:
        leaving.ready()
        async with worker_of(kafka.bootstrap, gateway, leaving) as echo, leaving.client() as client:
            calls = [asyncio.ensure_future(client.post(path(echo), json=BODY)) for _ in range(2)]
            first, second = await echo.take(), await echo.take()
            leaving.terminate()
            await asyncio.to_thread(leaving.logged, "enter_state", state="draining")
            assert (await client.get("/v2/health/ready")).status_code == 503
            assert (await client.get("/v2/health/live")).status_code == 200
            refused = await client.post(path(echo), json=BODY)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            await echo.reply(first)
            answers = await asyncio.gather(*calls)
            assert sorted(answer.status_code for answer in answers) == [200, 202]
            assert await asyncio.to_thread(leaving.ended) == 0
            (job,) = [answer.headers["location"] for answer in answers if answer.status_code == 202]
            await echo.reply(second)
            await asyncio.to_thread(gateway.logged, "keep_outcome", id=second.envelope.id)
            async with gateway.client() as other:
                assert (await other.get(f"{job}/result")).json()["outputs"][0]["data"] == ROW


async def test_a_second_signal_hurries_the_drain(kafka: LocalKafka, gateway: GatewayProcess) -> None:
    leaving = GatewayProcess(bootstrap=kafka.bootstrap, prefix=gateway.prefix, store=gateway.store, drain_s=600)
    with leaving:
        leaving.ready()
        async with worker_of(kafka.bootstrap, leaving) as echo, leaving.client() as client:
            call = asyncio.ensure_future(client.post(path(echo), json=BODY))
            await echo.take()
            leaving.terminate()
            await asyncio.to_thread(leaving.logged, "enter_state", state="draining")
            leaving.terminate()
            assert (await call).status_code == 202
            assert await asyncio.to_thread(leaving.ended) == 0


async def test_a_port_that_is_taken_ends_the_gateway_with_an_error(gateway: GatewayProcess, tmp_path: Any) -> None:
    port = gateway.url.rpartition(":")[2]
    environment = os.environ | {"TIDEGATE_JOB_KEY": JOB_KEY, "TIDEGATE_PORT": port, "TIDEGATE_STORE": str(tmp_path)}
    command = [sys.executable, "-m", "gateway"]
    ran = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, timeout=20)
    assert ran.returncode == 1
    assert b"address already in use" in ran.stderr


async def test_a_topic_deleted_and_made_again_is_served(kafka: LocalKafka, gateway: GatewayProcess) -> None:
    model = f"m{uuid.uuid4().hex[:6]}"
    echo = EchoWorker(bootstrap=kafka.bootstrap, prefix=gateway.prefix, model=model)
    async with echo, gateway.client() as client:
        await echo.announce()
        await asyncio.to_thread(gateway.logged, "learn_model", model=model)
        old = await client.post(path(echo), json=BODY, headers={"prefer": "respond-async"})
        await echo.delete_topic()
    again = EchoWorker(bootstrap=kafka.bootstrap, prefix=gateway.prefix, model=model, epoch=EPOCH + 1)
    async with again, gateway.client() as client:
        await again.announce()
        await asyncio.to_thread(gateway.logged, "learn_model", model=model, epoch=EPOCH + 1)
        gone = await client.get(old.headers["location"])
        assert (gone.status_code, gone.json()["code"]) == (410, "result_expired")
        serving = asyncio.ensure_future(again.serve())
        refused = []
        while (response := await client.post(path(again), json=BODY)).status_code != 200:
            refused.append(response.status_code)
            assert len(refused) < 20
        serving.cancel()
        assert set(refused) <= {503}  # while the producer is replaced


async def test_kafka_absent_and_gone_and_back(tmp_path: Any, prefix: str) -> None:
    port = random.randrange(20_000, 32_000)  # below those of outgoing connections: one could meet itself there
    broker, bootstrap = LocalKafka(port=port), f"127.0.0.1:{port}"
    with contextlib.closing(broker), GatewayProcess(bootstrap=bootstrap, prefix=prefix, store=tmp_path) as process:
        await asyncio.to_thread(process.logged, "kafka_unreachable")
        async with process.client() as client:
            assert (await client.get("/v2/health/live")).status_code == 200
            assert (await client.get("/v2/health/ready")).status_code == 503
            assert (await client.post("/v2/models/m/infer", json=BODY)).status_code == 503
            assert (await client.get("/scaling/v1/pools/p")).status_code == 503
            await asyncio.to_thread(broker.start)
            await asyncio.to_thread(process.ready)
            async with worker_of(bootstrap, process) as echo:
                response, _ = await answered(echo, client.post(path(echo), json=BODY))
                assert response.status_code == 200
                may_run = await _without_kafka(client, echo, broker, process)
                serving = asyncio.ensure_future(echo.serve())
                assert (await client.post(path(echo), json=BODY)).status_code == 200
                serving.cancel()
                # What had not left the gateway when its caller was refused is never sent.
                assert await records_in(echo) <= 2 + may_run
                assert may_run < 3
        process.terminate()
        assert await asyncio.to_thread(process.ended) == 0


async def _without_kafka(
    client: httpx.AsyncClient, echo: EchoWorker, broker: LocalKafka, process: GatewayProcess
) -> int:
    """Stop and start the broker; how many callers were told that their request may run nevertheless."""
    gauge = f'tidegate_pool_backlog{{pool="{echo.pool}"}}'
    await asyncio.to_thread(process.logged, "backlog_readable", pool=echo.pool)
    assert gauge in (await client.get("/metrics")).text
    await asyncio.to_thread(broker.stop)
    scale = await client.get(f"/scaling/v1/pools/{echo.pool}")
    assert (scale.status_code, scale.json()["code"]) == (503, "unavailable")
    headers = [{}, {"prefer": "wait=1"}, {"prefer": "respond-async"}]
    calls = [client.post(path(echo), json=BODY, headers=each) for each in headers]
    responses = await asyncio.gather(*calls)
    for response in responses:
        assert response.status_code == 503
        assert response.headers["retry-after"]
    await asyncio.to_thread(process.logged, "kafka_away")
    begun_s = time.monotonic()
    refused = await client.post(path(echo), json=BODY)
    assert time.monotonic() - begun_s < 1  # known to be away: nobody waits to learn it
    assert (refused.status_code, "was not accepted" in refused.json()["detail"]) == (503, True)
    await asyncio.to_thread(process.logged, "backlog_unreadable", pool=echo.pool)
    assert gauge not in (await client.get("/metrics")).text
    await asyncio.to_thread(broker.start)
    await asyncio.to_thread(process.logged, "kafka_back")
    return sum("may run" in response.json()["detail"] for response in responses)
