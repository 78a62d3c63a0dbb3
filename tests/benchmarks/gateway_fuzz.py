"""Made-up requests: from the OpenAPI document by schemathesis, damaged v2 bodies, damaged gRPC requests.

A fault is a request that is answered by an internal error or not at all, and whatever is left behind in the gateway
when all are answered.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import grpc
import requests
import uvloop

from tests.benchmarks.bench import Bench
from tests.benchmarks.gateway_status import submit
from tests.benchmarks.grpc_mutations import damaged_messages
from tests.benchmarks.openapi_cases import send_cases
from tests.benchmarks.raw_http import NoAnswer, RawHttp
from tests.benchmarks.rows import IDENTITY_CONFIG
from tests.benchmarks.stack import BenchmarkError, Program
from tests.benchmarks.v2_mutations import DamagedRequest, damaged_requests

_MODEL = "identity"
_CALLERS = 16
# The rest is damaged v2 requests. Making requests from the document takes schemathesis 30 ms each.
_DOCUMENT_SHARE = 0.03
_GRPC_SHARE = 0.4
_GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_GRPC_FAULTS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
_GRPC_PATIENCE_S = 60.0
_SHOWN = 5
_SHOWN_CHARS = 2000


class Verdicts:
    """What came of the requests; `faults` are told as they are, the first few."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.cases = 0
        self.faults = 0
        self.answers: Counter[str] = Counter()

    def note(self, answer: str, *, is_fault: bool, told: object = "") -> None:
        """One request's end."""
        self.cases += 1
        self.answers[answer] += 1
        if is_fault:
            self.fault(f"{answer} for {told!r}")

    def fault(self, what: str) -> None:
        """Something that must not be."""
        self.faults += 1
        if self.faults <= _SHOWN:
            self._bench.console.print(f"  fault: {what[:_SHOWN_CHARS]}", markup=False, highlight=False)


def measure(bench: Bench) -> None:
    """fuzz_*."""
    stack = bench.stack("bench-fuzz", {_MODEL: IDENTITY_CONFIG})
    seed = random.SystemRandom().randrange(1 << 32) if bench.seed is None else bench.seed
    bench.console.print(f"  seed {seed}", highlight=False)
    verdicts = Verdicts(bench)
    by_grpc, by_document = int(bench.fuzz_cases * _GRPC_SHARE), int(bench.fuzz_cases * _DOCUMENT_SHARE)
    by_http = bench.fuzz_cases - by_grpc - by_document
    with stack.both(wait_s="5", management_port="0") as (gateway, _):
        _from_document(gateway, verdicts, by_document, seed)
        _damaged_http(gateway, verdicts, by_http // 2, seed)
        _damaged_grpc(gateway, verdicts, by_grpc // 2, seed)
        half_mb = gateway.resident_mb()
        _damaged_http(gateway, verdicts, by_http - by_http // 2, seed + 1)
        _damaged_grpc(gateway, verdicts, by_grpc - by_grpc // 2, seed + 1)
        growth_mb = gateway.resident_mb() - half_mb
        if left := gateway.metric("tidegate_gateway_in_flight"):
            verdicts.fault(f"{left:g} requests are in flight although all are answered")
    told = ", ".join(f"{answer}: {count}" for answer, count in verdicts.answers.most_common())
    bench.console.print(f"  {told}", highlight=False, soft_wrap=True)
    bench.runs["fuzz_cases"].append(verdicts.cases)
    bench.runs["fuzz_faults"].append(verdicts.faults)
    bench.runs["fuzz_growth_mb"].append(growth_mb)


def _from_document(gateway: Program, verdicts: Verdicts, cases: int, seed: int) -> None:
    known = {"model": _MODEL, "version": "1", "pool": "default", "id": submit(gateway).rpartition("/")[2]}

    def judge(method: str, path: str, answer: requests.Response | None, request: str) -> None:
        if answer is None:
            verdicts.note("no answer", is_fault=True, told=(method, path, request))
            return
        status = answer.status_code
        verdicts.note(str(status), is_fault=status == 500, told=(method, path, request, answer.text[:500]))

    send_cases(f"http://127.0.0.1:{gateway.port}", known=known, cases=cases, seed_=seed, judge=judge)


def _damaged_http(gateway: Program, verdicts: Verdicts, cases: int, seed: int) -> None:
    uvloop.run(_send_all(gateway.port, verdicts, islice(damaged_requests(seed, _MODEL), cases)))


async def _send_all(port: int, verdicts: Verdicts, made: Iterator[DamagedRequest]) -> None:
    async def call() -> None:
        async with RawHttp(port) as http:
            for request in made:
                try:
                    status, body = await http.send("POST", request.path, request.headers, request.body)
                except NoAnswer as error:
                    verdicts.note("no answer", is_fault=True, told=(error, request))
                    continue
                verdicts.note(str(status), is_fault=status == 500, told=(body[:500], request))

    await asyncio.gather(*(call() for _ in range(_CALLERS)))


def _damaged_grpc(gateway: Program, verdicts: Verdicts, cases: int, seed: int) -> None:
    asyncio.run(_call_all(gateway.read("grpc_port"), verdicts, islice(damaged_messages(seed, _MODEL), cases)))


async def _call_all(port: int, verdicts: Verdicts, made: Iterator[bytes]) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer: Any = channel.unary_unary(_GRPC_METHOD)  # bytes as they are, both ways

        async def call() -> None:
            for message in made:
                try:
                    await infer(message, timeout=_GRPC_PATIENCE_S)
                    verdicts.note("OK", is_fault=False)
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    verdicts.note(code.name, is_fault=code in _GRPC_FAULTS, told=(error.details(), message))
                    if code is grpc.StatusCode.UNAVAILABLE and "refused" in str(error.details()):
                        raise BenchmarkError("the gateway has gone") from error

        await asyncio.gather(*(call() for _ in range(_CALLERS)))
