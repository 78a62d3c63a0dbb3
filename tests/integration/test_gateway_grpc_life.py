"""Life of the gRPC side: health, drain, TLS, ports, limits, forks."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from local.kafka import LocalKafka
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import ROW, worker_of
from tests.integration.gateway_process import GatewayProcess
from tests.integration.grpc_calls import bare, failed, infer, row_request, streaming

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

Code = grpc.StatusCode
Status = HealthCheckResponse


def own_gateway(kafka: LocalKafka, store: Path, **settings: Any) -> GatewayProcess:
    return GatewayProcess(bootstrap=kafka.bootstrap, prefix=f"t{uuid.uuid4().hex[:6]}", store=store, **settings)


async def health(channel: Any, service: str = "") -> str:
    body = HealthCheckRequest(service=service).SerializeToString()
    answer = Status.FromString(await bare(channel, "/grpc.health.v1.Health/Check")(body, timeout=10))
    name: str = Status.ServingStatus.Name(answer.status)
    return name


async def fails_to_start(gateway: GatewayProcess) -> None:
    """Its log says why, in JSON as ever, and its exit status is that of a failure."""
    with contextlib.ExitStack() as ended:
        ended.push(gateway)
        with pytest.raises(AssertionError, match="no log line"):
            await asyncio.to_thread(gateway.__enter__)
        assert await asyncio.to_thread(gateway.ended) == 1
    assert gateway.seen("gateway_failed")
    assert gateway.not_json() == []


class Watch:
    """A watcher of the health service."""

    def __init__(self, channel: Any) -> None:
        call = channel.unary_stream("/grpc.health.v1.Health/Watch")
        self.call = call(HealthCheckRequest().SerializeToString())

    async def next(self) -> str:
        name: str = Status.ServingStatus.Name(Status.FromString(await self.call.read()).status)
        return name


async def test_health_follows_the_gateway_and_so_does_everybody_who_watches(kafka: LocalKafka, tmp_path: Path) -> None:
    with own_gateway(kafka, tmp_path, drain_s=20) as gateway:
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as echo, grpc.aio.insecure_channel(gateway.grpc) as channel:
            assert await health(channel) == "SERVING"
            assert await health(channel, "inference.GRPCInferenceService") == "SERVING"
            assert (await failed(bare(channel, "/grpc.health.v1.Health/Check")(b"\x0a\x01x")))[0] is Code.NOT_FOUND
            watches = [Watch(channel) for _ in range(3)]
            assert [await watch.next() for watch in watches] == ["SERVING"] * 3
            watches[0].call.cancel()
            call = await infer(channel, echo.model)
            waiting = await infer(channel, echo.model)
            stream = streaming(channel)()
            await stream.write(row_request(echo.model).SerializeToString())
            taken = [await echo.take() for _ in range(3)]
            gateway.terminate()
            assert [await watch.next() for watch in watches[1:]] == ["NOT_SERVING"] * 2
            assert await health(channel) == "NOT_SERVING"
            ready = bare(channel, "ServerReady")
            assert await ready(b"") == b""  # ready: false
            code, _, told = await failed(await infer(channel, echo.model))
            assert (code, told["tidegate-code"]) == (Code.UNAVAILABLE, "unavailable")
            waiting.cancel()  # a caller that leaves during the drain
            for each in taken:
                await echo.reply(each)
            assert await call
            assert await stream.read() is not grpc.aio.EOF
            code, message, _ = await failed(stream.read())
            assert (code, message) == (Code.UNAVAILABLE, "this gateway stops; open a new stream")
            assert await asyncio.to_thread(gateway.ended) == 0
    assert gateway.not_json() == []


async def test_a_drain_gives_who_still_waits_a_job(kafka: LocalKafka, tmp_path: Path) -> None:
    with own_gateway(kafka, tmp_path, drain_s=1) as gateway:
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as echo, grpc.aio.insecure_channel(gateway.grpc) as channel:
            call = await infer(channel, echo.model)
            await echo.take()
            gateway.terminate()
            code, _, told = await failed(call)
            assert (code, bool(told["tidegate-job-id"])) == (Code.DEADLINE_EXCEEDED, True)
            assert await asyncio.to_thread(gateway.ended) == 0


async def test_a_gateway_without_kafka_is_live_and_not_ready(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with GatewayProcess(bootstrap=address, prefix="t", store=tmp_path) as gateway:
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            assert await health(channel) == "NOT_SERVING"
            assert await bare(channel, "ServerLive")(b"") == b"\x08\x01"
            code, _, told = await failed(await infer(channel, "any"))
            assert (code, told["retry-after"]) == (Code.UNAVAILABLE, "1")
            gateway.terminate()
            assert await asyncio.to_thread(gateway.ended) == 0


async def test_a_port_that_is_taken_ends_the_gateway(
    kafka: LocalKafka, gateway: GatewayProcess, tmp_path: Path
) -> None:
    port = int(gateway.grpc.rpartition(":")[2])
    second = own_gateway(kafka, tmp_path, grpc_port=port)
    await fails_to_start(second)


async def test_more_calls_than_may_be_open_are_refused(kafka: LocalKafka, tmp_path: Path) -> None:
    with own_gateway(kafka, tmp_path, grpc_max_calls=2) as gateway:
        gateway.ready()
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            watches = [Watch(channel) for _ in range(2)]
            assert [await watch.next() for watch in watches] == ["SERVING"] * 2
            assert (await failed(bare(channel, "ServerLive")(b"")))[0] is Code.RESOURCE_EXHAUSTED
            for watch in watches:
                watch.call.cancel()


def certificate(directory: Path, name: str, *, signed_by: str | None = None) -> None:
    """A key and a certificate of this name, signed by another or by itself."""
    key, request, made = (str(directory / f"{name}.{end}") for end in ("key", "csr", "pem"))
    subject = ["-subj", f"/CN={name}", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    if signed_by is None:
        command = ["openssl", "req", "-x509", *subject, "-keyout", key, "-out", made, "-days", "2"]
        subprocess.run(command, check=True, capture_output=True)
        return
    subprocess.run(["openssl", "req", *subject, "-keyout", key, "-out", request], check=True, capture_output=True)
    names = directory / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    command = ["openssl", "x509", "-req", "-in", request, "-out", made, "-days", "2", "-extfile", str(names)]
    signer = ["-CA", str(directory / f"{signed_by}.pem"), "-CAkey", str(directory / f"{signed_by}.key")]
    subprocess.run([*command, *signer, "-CAcreateserial"], check=True, capture_output=True)


async def test_tls_with_client_certificates(kafka: LocalKafka, tmp_path: Path) -> None:
    certificate(tmp_path, "authority")
    for name in ("server", "client"):
        certificate(tmp_path, name, signed_by="authority")
    certificate(tmp_path, "stranger")

    def credentials(name: str) -> Any:
        files = [tmp_path / f"{name}.{end}" for end in ("key", "pem")] if name else []
        return grpc.ssl_channel_credentials((tmp_path / "authority.pem").read_bytes(), *(f.read_bytes() for f in files))

    settings = {
        "grpc_tls_certificate": tmp_path / "server.pem",
        "grpc_tls_key": tmp_path / "server.key",
        "grpc_tls_client_ca": tmp_path / "authority.pem",
    }
    with own_gateway(kafka, tmp_path / "store", **settings) as gateway:
        gateway.ready()
        assert gateway.logged("listen_grpc")["tls"] is True
        async with grpc.aio.secure_channel(gateway.grpc, credentials("client")) as channel:
            assert await health(channel) == "SERVING"
        for name in ("", "stranger"):
            async with grpc.aio.secure_channel(gateway.grpc, credentials(name)) as channel:
                assert (await failed(bare(channel, "ServerLive")(b"", timeout=10)))[0] is Code.UNAVAILABLE
        async with grpc.aio.insecure_channel(gateway.grpc) as channel:
            assert (await failed(bare(channel, "ServerLive")(b"", timeout=10)))[0] is Code.UNAVAILABLE
        async with grpc.aio.secure_channel(gateway.grpc, credentials("client")) as channel:
            assert await health(channel) == "SERVING"
    assert gateway.not_json() == []


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_certificate_that_cannot_be_used_ends_the_gateway(
    kafka: LocalKafka, tmp_path: Path, content: str | None
) -> None:
    files = [tmp_path / name for name in ("server.pem", "server.key")]
    if content is not None:
        for file in files:
            file.write_text(content)
    broken = own_gateway(kafka, tmp_path, grpc_tls_certificate=files[0], grpc_tls_key=files[1])
    await fails_to_start(broken)


async def test_noise_on_the_port_harms_nobody(gateway: GatewayProcess, worker: EchoWorker) -> None:
    host, _, port = gateway.grpc.partition(":")
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)), bytes(1000)):
        with socket.create_connection((host, int(port))) as dialled:
            dialled.sendall(noise)
            dialled.shutdown(socket.SHUT_WR)
            await asyncio.to_thread(_read_out, dialled)
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        call = await infer(channel, worker.model)
        await worker.reply(await worker.take())
        assert await call


def _read_out(dialled: socket.socket) -> None:
    try:
        while dialled.recv(4096):
            pass
    except ConnectionResetError:
        pass


async def test_a_process_with_a_channel_may_fork(gateway: GatewayProcess, worker: EchoWorker) -> None:
    async with grpc.aio.insecure_channel(gateway.grpc) as channel:
        assert await bare(channel, "ServerLive")(b"")
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('ran')", stdout=subprocess.PIPE)
        assert (await child.communicate())[0] == b"ran\n"
        spawned = multiprocessing.get_context("spawn").Process(target=print)
        await asyncio.to_thread(_run, spawned)
        assert spawned.exitcode == 0
        call = await infer(channel, worker.model)
        await worker.reply(await worker.take())
        assert len(ROW) == 4
        assert await call


def _run(process: Any) -> None:
    process.start()
    process.join()
