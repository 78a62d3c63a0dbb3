"""Configuration, statistics and the model repository extension over HTTP, with a worker that tells about itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec.structs import replace

from local.kafka import LocalKafka
from schemas.wish import ModelWish, decode_wish
from schemas.worker_report import Duration, ModelStatistics, WorkerReport, encode_report, report_key
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

CONFIG = {"name": "m", "max_batch_size": 8, "dynamic_batching": {"max_queue_delay_microseconds": "100"}}


class Reporting:
    """What the worker reports; each `tell` is known to the gateway when it returns."""

    def __init__(self, worker: EchoWorker, http: httpx.AsyncClient) -> None:
        self.worker, self.http = worker, http
        self.done = ModelStatistics(worker.model, "2", "unloaded")

    async def tell(self, **changes: object) -> None:
        self.done = replace(self.done, success=Duration(self.done.success.count + 1), **changes)
        now_ms = time.time_ns() // 1_000_000
        report = WorkerReport(self.worker.pool, "serving", 1, now_ms, models=(self.done,))
        await self.worker.producer.send_and_wait(
            self.worker.topics.control, encode_report(report), key=report_key(self.worker.model)
        )
        async with asyncio.timeout(20):
            while True:  # each try is a request and takes its time
                stats = (await self.http.get(f"/v2/models/{self.worker.model}/versions/2/stats")).json()
                if stats["model_stats"][0]["inference_stats"]["success"]["count"] == self.done.success.count:
                    return


@pytest_asyncio.fixture
async def reporting(worker: EchoWorker, http: httpx.AsyncClient) -> Reporting:
    return Reporting(worker, http)


@pytest_asyncio.fixture
async def wishes(kafka: LocalKafka, worker: EchoWorker) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, enable_auto_commit=False)
    place = TopicPartition(worker.topics.control, 0)
    consumer.assign([place])
    await consumer.start()
    await consumer.seek_to_end(place)
    await consumer.position(place)
    yield consumer
    await consumer.stop()


async def next_wish(wishes: AIOKafkaConsumer) -> tuple[str, ModelWish]:
    async with asyncio.timeout(20):
        while True:
            record = await wishes.getone()
            if (wish := decode_wish(record.key, record.value)) is not None:
                return wish


async def test_the_configuration_is_the_one_that_is_announced(
    worker: EchoWorker, http: httpx.AsyncClient, gateway: GatewayProcess
) -> None:
    assert (await http.get(f"/v2/models/{worker.model}/config")).status_code == 501
    worker.announcement = replace(worker.announcement, config=CONFIG)
    await worker.announce()
    async with asyncio.timeout(20):
        while (answer := await http.get(f"/v2/models/{worker.model}/versions/1/config")).status_code != 200:
            pass
    assert answer.json() == CONFIG
    for path in (f"/v2/models/{worker.model}/versions/9/config", "/v2/models/unknown/config"):
        assert (await http.get(path)).status_code == 404


async def test_statistics_are_those_that_workers_report(reporting: Reporting, http: httpx.AsyncClient) -> None:
    await reporting.tell(rows=12, batches=3)
    model = reporting.worker.model
    whole = (await http.get("/v2/models/stats")).json()["model_stats"]
    (mine,) = [each for each in whole if (each["name"], each["version"]) == (model, "2")]
    assert (mine["inference_count"], mine["execution_count"]) == (12, 3)
    assert [each["version"] for each in whole if each["name"] == model] == ["1", "2"]


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/index"])
async def test_the_index_tells_states_as_workers_report_them(
    reporting: Reporting, http: httpx.AsyncClient, path: str
) -> None:
    async def state(asked: dict[str, object] | None = None) -> tuple[str, str] | None:
        index = (await http.post(path, json=asked)).json() if asked is not None else (await http.post(path)).json()
        found = [each for each in index if (each["name"], each["version"]) == (reporting.worker.model, "2")]
        return (found[0]["state"], found[0]["reason"]) if found else None

    assert await state() == ("READY", "not in memory; its first request loads it")
    await reporting.tell(state="loading")
    assert await state() == ("LOADING", "")
    assert await state({"ready": True}) is None
    await reporting.tell(state="ready")
    assert await state({"ready": True}) == ("READY", "")
    await reporting.tell(state="failed", reason="no such operator")
    assert await state({}) == ("UNAVAILABLE", "no such operator")


async def test_loading_is_a_wish_that_is_over_when_every_worker_has_fulfilled_it(
    reporting: Reporting, management: httpx.AsyncClient, wishes: AIOKafkaConsumer
) -> None:
    await reporting.tell(state="failed", reason="of an earlier try")
    model = reporting.worker.model
    load = asyncio.ensure_future(management.post(f"/v2/repository/models/{model}/load"))
    name, wish = await next_wish(wishes)
    assert (name, wish.action, wish.version) == (model, "load", "2")
    await reporting.tell(state="loading")
    assert not load.done()
    await reporting.tell(state="ready")
    assert (await load).json() == {"name": model, "result": "loaded by 1 workers"}

    unload = asyncio.ensure_future(management.post(f"/v2/repository/models/{model}/unload"))
    assert (await next_wish(wishes))[1].action == "unload"
    await reporting.tell(state="unloaded")
    assert (await unload).json() == {"name": model, "result": "unloaded by 1 workers"}


async def test_a_model_that_does_not_load_says_why(
    reporting: Reporting, management: httpx.AsyncClient, wishes: AIOKafkaConsumer
) -> None:
    await reporting.tell()
    load = asyncio.ensure_future(management.post(f"/v2/repository/models/{reporting.worker.model}/load"))
    await next_wish(wishes)
    await reporting.tell(state="failed", reason="no such operator")
    answer = await load
    assert (answer.status_code, answer.json()["code"]) == (503, "model_load_failed")
    assert "no such operator" in answer.json()["detail"]


async def test_a_wish_for_a_pool_without_workers_is_kept_for_them(
    worker: EchoWorker, management: httpx.AsyncClient, wishes: AIOKafkaConsumer
) -> None:
    answer = await management.post(f"/v2/repository/models/{worker.model}/load", json={"parameters": {"version": "1"}})
    assert "no worker of pool" in answer.json()["result"]
    assert (await next_wish(wishes))[1].version == "1"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v2/repository/models/unknown/load", b"", 404),
        ("/v2/repository/models/unknown/unload", b"{}", 404),
        ("/v2/repository/models/{model}/load", b'{"parameters": {"config": "{}"}}', 501),
        ("/v2/repository/models/{model}/load", b'{"parameters": {"file:1/model.onnx": "aGk="}}', 501),
        ("/v2/repository/models/{model}/load", b'{"parameters": {"version": "9"}}', 404),
        ("/v2/repository/models/{model}/load", b'{"parameters": -1}', 400),
        ("/v2/repository/models/{model}/load", b'{"parameters": ["config"]}', 400),
        ("/v2/repository/models/{model}/load", b"[1]", 400),
        ("/v2/repository/models/{model}/load", b"\xff", 400),
        ("/v2/repository/models/{model}/unload", b"x" * 1_100_000, 413),
        ("/v2/repository/index", b"[]", 400),
    ],
)
async def test_what_cannot_be_done_is_a_problem(
    worker: EchoWorker,
    http: httpx.AsyncClient,
    management: httpx.AsyncClient,
    path: str,
    body: bytes,
    status: int,
) -> None:
    client = http if path.endswith("index") else management
    answer = await client.post(path.format(model=worker.model), content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.json()["detail"]
