"""Gateway and worker together, both real: what one tells the other over Kafka comes to something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from aiokafka import AIOKafkaConsumer
from tritonclient.utils import InferenceServerException

from local.kafka import LocalKafka
from schemas.cancellation import decode_cancellation
from tests.integration.gateway_process import GatewayProcess
from tests.integration.worker_process import Installation, WorkerProcess

pytestmark = pytest.mark.kafka

ROW = np.array([[0.25, 0.75, 0.5]], dtype=np.float32)
ASYNC = {"prefer": "respond-async"}
_PATIENCE_S = 30.0


class Site:
    """An installation with a gateway and, while `worker` is entered, a worker."""

    def __init__(self, installation: Installation, gateway: GatewayProcess, http: httpx.AsyncClient) -> None:
        self.installation = installation
        self.gateway = gateway
        self.http = http

    @asynccontextmanager
    async def worker(self, *models: str) -> AsyncIterator[WorkerProcess]:
        async with self.installation.worker() as worker:
            await worker.ready()
            for model in models:
                await asyncio.to_thread(self.gateway.logged, "learn_model", model=model)
            yield worker

    async def submit(self, model: str, value: float, **headers: str) -> str:
        """A job; its path."""
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [value]}
        accepted = await self.http.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}, headers=ASYNC | headers)
        assert accepted.status_code == 202, accepted.text
        return str(accepted.headers["location"])

    async def ended(self, job: str) -> dict[str, Any]:
        """The job's document, once it has ended."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                document: dict[str, Any] = (await self.http.get(f"{job}?wait=20")).json()
                if document["finished_at"]:
                    return document

    async def cancelled(self) -> None:
        """Wait until one request's cancellation is on the control topic."""
        async with (
            AIOKafkaConsumer(
                self.installation.prefix + ".control",
                bootstrap_servers=self.installation.bootstrap,
                auto_offset_reset="earliest",
            ) as reader,
            asyncio.timeout(_PATIENCE_S),
        ):
            while (found := decode_cancellation((record := await reader.getone()).key, record.value)) is None:
                pass
            assert found[2] is not None

    async def until(self, path: str, holds: Callable[[Any], bool]) -> Any:
        """What a GET of the path answers, once this holds of it. Reports come every two seconds."""
        async with asyncio.timeout(_PATIENCE_S):
            while not holds(answer := (await self.http.get(path)).json()):  # noqa: ASYNC110  # nobody tells of it
                await asyncio.sleep(0.1)
            return answer


@asynccontextmanager
async def site_of(kafka: LocalKafka, prefix: str, directory: Path) -> AsyncIterator[Site]:
    installation = Installation(kafka.bootstrap, prefix, directory)
    gateway = GatewayProcess(
        bootstrap=kafka.bootstrap,
        prefix=prefix,
        store=installation.store,
        status_cache_ms=0,
        management_port=0,
        grpc_management_port=0,
    )
    with gateway:
        await asyncio.to_thread(gateway.ready)
        async with gateway.client() as http:
            yield Site(installation, gateway, http)


def inputs(module: Any) -> list[Any]:
    tensor = module.InferInput("INPUT0", list(ROW.shape), "FP32")
    tensor.set_data_from_numpy(ROW)
    return [tensor]


async def test_classes_with_their_labels_come_over_both_protocols_and_in_jobs(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    async with site_of(kafka, prefix, tmp_path) as site:
        site.installation.add_device("dev", dims="3")
        config = site.installation.repository / "dev" / "config.pbtxt"
        config.write_text(
            config.read_text().replace('name: "OUTPUT0"', 'name: "OUTPUT0" label_filename: "classes.txt"')
        )
        (site.installation.repository / "dev" / "classes.txt").write_text("cat\ndog\n")
        wanted = [[b"0.750000:1:dog", b"0.500000:2"]]
        async with site.worker("dev"):
            async with triton_http.InferenceServerClient(site.gateway.url.removeprefix("http://")) as http:
                outputs = [triton_http.InferRequestedOutput("OUTPUT0", class_count=2)]
                result = await http.infer("dev", inputs(triton_http), outputs=outputs)
                assert result.as_numpy("OUTPUT0").tolist() == wanted
                told = await http.get_model_config("dev")
                assert told["output"][0]["label_filename"] == "classes.txt"
            async with triton_grpc.InferenceServerClient(site.gateway.grpc) as client:
                outputs = [triton_grpc.InferRequestedOutput("OUTPUT0", class_count=2)]
                result = await client.infer("dev", inputs(triton_grpc), outputs=outputs)
                assert result.as_numpy("OUTPUT0").tolist() == wanted
                assert (await client.get_model_config("dev")).config.max_batch_size == 32
            body = {
                "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 3], "data": ROW[0].tolist()}],
                "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
            }
            accepted = await site.http.post("/v2/models/dev/infer", json=body, headers=ASYNC)
            job = accepted.headers["location"]
            assert (await site.ended(job))["state"] == "succeeded"
            assert (await site.http.get(f"{job}/result")).json()["outputs"][0]["data"] == ["0.750000:1:dog"]


async def test_statistics_add_up_to_what_was_answered(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    async with site_of(kafka, prefix, tmp_path) as site:
        site.installation.add_device("dev", fail_value=666.0)
        async with site.worker("dev"):
            jobs = [await site.submit("dev", value) for value in (1.0, 2.0, 3.0, 666.0)]
            states = sorted([(await site.ended(job))["state"] for job in jobs])
            assert states == ["failed", "succeeded", "succeeded", "succeeded"]
            answer = await site.until(
                "/v2/models/dev/stats",
                lambda told: told["model_stats"][0]["inference_stats"]["success"]["count"] == 3,
            )
            (told,) = answer["model_stats"]
            assert told["inference_stats"]["fail"]["count"] == 1
            assert told["inference_stats"]["compute_infer"]["ns"] > 0
            assert sum(batch["compute_infer"]["count"] for batch in told["batch_stats"]) == told["execution_count"]
            status = (await site.http.get("/status.json")).json()
            assert [(model["name"], model["succeeded"], model["failed"]) for model in status["models"]] == [
                ("dev", 3, 1)
            ]
            async with triton_grpc.InferenceServerClient(site.gateway.grpc) as client:
                (same,) = (await client.get_inference_statistics("dev")).model_stats
                assert same.inference_stats.success.count == 3


async def test_a_model_is_loaded_and_unloaded_on_the_management_ports(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    async with site_of(kafka, prefix, tmp_path) as site:
        site.installation.add_device("dev")
        async with site.worker("dev") as worker:
            await site.until("/status.json", lambda told: len(told["workers"]) == 1)
            async with site.gateway.management_client() as management:
                address = str(management.base_url).removeprefix("http://")
                async with triton_http.InferenceServerClient(address) as client:
                    await client.load_model("dev")
                    await worker.logged('"load_model"', '"dev/1"')
                    await client.unload_model("dev")
                    await worker.logged('"unload_model"', '"dev/1"')
                    with pytest.raises(InferenceServerException, match="there is no model"):
                        await client.load_model("unknown")
            port = (await asyncio.to_thread(site.gateway.logged, "listen_grpc", name="management"))["grpc_port"]
            async with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as by_grpc:
                await by_grpc.load_model("dev")
            async with triton_grpc.InferenceServerClient(site.gateway.grpc) as public:
                with pytest.raises(InferenceServerException) as caught:
                    await public.load_model("dev")
                assert "PERMISSION_DENIED" in str(caught.value.status())


async def test_a_cancelled_job_never_runs_and_its_neighbours_do(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    async with site_of(kafka, prefix, tmp_path) as site:
        site.installation.add_device("dev", max_batch_size=1, execute_base_ms=300)
        async with site.worker("dev"):
            pass  # now the model is known, and nobody runs it
        first, second, third = [await site.submit("dev", value) for value in (1.0, 2.0, 3.0)]
        cancelled = await site.http.delete(second)
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        async with site.worker("dev"):
            assert [(await site.ended(job))["state"] for job in (first, third)] == ["succeeded", "succeeded"]
            assert (await site.ended(second))["state"] == "cancelled"
            assert (await site.http.get(f"{second}/result")).json()["code"] == "cancelled"
            told = await site.until(
                "/v2/models/dev/stats", lambda told: told["model_stats"][0]["inference_stats"]["success"]["count"] == 2
            )
            assert told["model_stats"][0]["execution_count"] == 2
            late = await site.http.delete(first)
            assert (late.status_code, late.json()["job"]["state"]) == (409, "succeeded")


async def test_a_grpc_caller_that_leaves_takes_its_request_along(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    async with site_of(kafka, prefix, tmp_path) as site:
        site.installation.add_device("dev", max_batch_size=1, dims="3")
        async with site.worker("dev"):
            pass
        async with triton_grpc.InferenceServerClient(site.gateway.grpc) as client:
            leaving = asyncio.ensure_future(client.infer("dev", inputs(triton_grpc)))
            staying = asyncio.ensure_future(client.infer("dev", inputs(triton_grpc)))
            await site.until("/scaling/v1/pools/default", lambda told: told["backlog"] == 2)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await site.cancelled()
            async with site.worker("dev"):
                assert (await staying).as_numpy("OUTPUT0").tolist() == ROW.tolist()
                await site.until("/scaling/v1/pools/default", lambda told: told["backlog"] == 0)
                told = await site.until(
                    "/v2/models/dev/stats",
                    lambda told: told["model_stats"][0]["inference_stats"]["success"]["count"] == 1,
                )
                assert told["model_stats"][0]["execution_count"] == 1


async def test_a_request_that_runs_too_long_is_answered_in_time(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    async with site_of(kafka, prefix, tmp_path) as site:
        site.installation.add_device("dev", execute_base_ms=1500)
        async with site.worker("dev"):
            hurried = await site.submit("dev", 1.0, **{"tidegate-execution-timeout-ms": "300"})
            patient = await site.submit("dev", 2.0)
            document = await site.ended(hurried)
            assert (document["state"], document["error"]["code"]) == ("failed", "execution_timeout")
            assert (await site.ended(patient))["state"] == "succeeded"


async def test_the_health_service_follows_readiness(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    async with site_of(kafka, prefix, tmp_path) as site, grpc.aio.insecure_channel(site.gateway.grpc) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"  # SERVING
