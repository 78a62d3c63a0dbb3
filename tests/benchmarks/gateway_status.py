"""A job's status while a million jobs are queued."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from typing import Any

import uvloop
from aiokafka import AIOKafkaProducer

from schemas.record import Envelope, encode_request_record
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from schemas.topics import Topics
from tests.benchmarks.bench import Bench
from tests.benchmarks.gateway_requests import announce
from tests.benchmarks.load import ensure_wrk, get
from tests.benchmarks.rows import IDENTITY_CONFIG, PARTITIONS, row_body
from tests.benchmarks.stack import BenchmarkError, Program

_QUEUED = 1_000_000
_JOBS = 32  # submitted before and behind the others each
_OUTSTANDING = 4
_PATH = "/v2/models/identity/infer"


def measure(bench: Bench) -> None:
    """status_*: no worker runs, so all stay queued; of the jobs that are asked for one half stands in front."""
    ensure_wrk()
    prefix = "bench-status"
    stack = bench.stack(prefix, {"identity": IDENTITY_CONFIG})
    announce(stack)
    with stack.gateway(grpc_port="0") as gateway:
        gateway.await_answer("/v2/models/identity/ready")
        paths = [submit(gateway) for _ in range(_JOBS)]
        uvloop.run(_fill(bench.bootstrap, Topics(prefix).infer("identity"), bench.rows(_QUEUED)))
        paths += [submit(gateway) for _ in range(_JOBS)]
        _check(gateway, paths[-1], bench.rows(_QUEUED))

        def one_round() -> dict[str, float]:
            url = f"http://127.0.0.1:{gateway.port}"
            load = get(url, paths, outstanding=_OUTSTANDING, run_s=bench.run_s)
            return {"status_p50_ms": load.p50_ms, "status_p99_ms": load.p99_ms, "status_rps": load.rps}

        bench.repeat(one_round)


async def _fill(bootstrap: str, topic: str, rows: int) -> None:
    """Append so many jobs, in batches as large as the broker takes them: nothing here is measured."""
    request = InferenceRequest((tensor_from_list("INPUT0", "FP32", (1, 16), [0.0] * 16),))
    value, headers = encode_request_record(
        request, Envelope("row", source="/benchmarks", stored=True), now_ms=time.time_ns() // 1_000_000
    )
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=1 << 19, acks="all") as to:
        sent: list[asyncio.Future[Any]] = []
        done = 0
        while done < rows:
            batch = to.create_batch()
            while done < rows and batch.append(timestamp=None, key=None, value=value, headers=headers) is not None:
                done += 1
            sent.append(await to.send_batch(batch, topic, partition=len(sent) % PARTITIONS))
        for each in sent:
            await each


def submit(gateway: Program) -> str:
    """A job; the path of its document."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    headers = {"Prefer": "respond-async", "Content-Type": "application/json"}
    connection.request("POST", _PATH, row_body(), headers)
    answer = connection.getresponse()
    answer.read()
    path = answer.getheader("location")
    if answer.status != 202 or path is None:
        raise BenchmarkError(f"a job was answered {answer.status}")
    return path


def _check(gateway: Program, path: str, rows: int) -> None:
    """The last job stands behind its share of the others, or nothing was measured."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    connection.request("GET", path)
    position = json.loads(connection.getresponse().read())["position"]
    if position is None or position < rows / PARTITIONS / 2:
        raise BenchmarkError(f"with {rows} jobs queued the last one is at position {position}")
