"""The access log of a real gateway: inference, routed requests, and what is never written."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.kafka import LocalKafka
from tests.integration.gateway_calls import BODY, answered, path, worker_of
from tests.integration.gateway_process import GatewayProcess

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
