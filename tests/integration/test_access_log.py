"""The access log of a real gateway: inference, routed requests, and what is never written."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from local.kafka import LocalKafka
from tests.integration.gateway_calls import BODY, answered, path, worker_of
from tests.integration.gateway_process import GatewayProcess
from tests.integration.grpc_calls import SERVICE, failed, infer, replied, row_request, streaming

pytestmark = pytest.mark.kafka


async def test_each_answer_is_a_line(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    settings = {"bootstrap": kafka.bootstrap, "prefix": prefix, "store": tmp_path, "access_log": "all"}
    with GatewayProcess(**settings) as gateway:  # type: ignore[arg-type]  # names and values fit each other
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as worker, gateway.client() as http:
            headers = {"x-request-id": "mine", "authorization": "Bearer secret"}
            response, _ = await answered(worker, http.post(path(worker), json=BODY, headers=headers))
            line = gateway.logged("access", request_id="mine")
            assert line["path"] == "/v2/models/{model}/infer"
            assert (line["method"], line["status"], line["model"]) == ("POST", 200, worker.model)
            assert line["bytes_out"] == len(response.content)
            assert line["bytes_in"] > 10
            assert line["duration_ms"] > 0
            assert line["trace_id"] == response.headers["traceparent"].split("-")[1]
            assert (line["caller"], line["tenant"]) == ("anonymous", "")
            await http.post(f"/v2/models/{worker.model}/versions/9/infer", json=BODY, headers={"x-request-id": "two"})
            line = gateway.logged("access", request_id="two")
            assert (line["path"], line["status"]) == ("/v2/models/{model}/versions/{version}/infer", 404)
            await http.get(f"/v2/models/{worker.model}", headers={"x-request-id": "three"})
            assert gateway.logged("access", request_id="three")["path"] == "/v2/models/{model}"
        assert not any("secret" in str(line) for line in gateway._lines)


async def test_each_grpc_call_is_a_line_and_each_request_of_a_stream(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    settings = {"bootstrap": kafka.bootstrap, "prefix": prefix, "store": tmp_path, "access_log": "all"}
    with GatewayProcess(**settings) as gateway:  # type: ignore[arg-type]  # names and values fit each other
        gateway.ready()
        async with worker_of(kafka.bootstrap, gateway) as worker, grpc.aio.insecure_channel(gateway.grpc) as channel:
            call = await infer(channel, worker.model, x_request_id="mine", authorization="Bearer secret")
            answer = await replied(worker, call)
            told = dict(await call.trailing_metadata())
            line = gateway.logged("access", request_id="mine")
            assert (line["method"], line["path"]) == ("gRPC", f"{SERVICE}ModelInfer")
            assert (line["status"], line["grpc_status"], line["model"]) == (200, "OK", worker.model)
            assert (line["bytes_in"] > 10, line["bytes_out"], line["duration_ms"] > 0) == (True, len(answer), True)
            assert (told["x-request-id"], told["traceparent"].split("-")[1]) == ("mine", line["trace_id"])
            assert (line["caller"], line["tenant"]) == ("anonymous", "")
            await failed(await infer(channel, "nobody", x_request_id="two"))
            line = gateway.logged("access", request_id="two")
            assert (line["status"], line["grpc_status"], line["model"]) == (404, "NOT_FOUND", "nobody")
            stream = streaming(channel)(timeout=20)
            await stream.write(row_request("nobody").SerializeToString())
            await stream.write(b"no message")
            await stream.done_writing()
            assert len([each async for each in stream]) == 2
            for status in ("NOT_FOUND", "INVALID_ARGUMENT"):
                gateway.logged("access", path=f"{SERVICE}ModelStreamInfer", grpc_status=status)
        assert not any("secret" in str(line) for line in gateway._lines)
