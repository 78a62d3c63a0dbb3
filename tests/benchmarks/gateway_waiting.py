"""What waiting callers cost: the memory of a gateway while 10,000 of them wait, each on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import resource

import uvloop

from tests.benchmarks.bench import Bench
from tests.benchmarks.gateway_requests import announce
from tests.benchmarks.rows import IDENTITY_CONFIG, row_body
from tests.benchmarks.stack import BenchmarkError, Program

_CALLERS = 10_000
_AT_ONCE = 200  # being connected: more overflow the listener's queue
_PATIENCE_S = 120.0


def measure(bench: Bench) -> None:
    """waiting_*: no worker runs, so everyone waits."""
    _allow_files()
    stack = bench.stack("bench-waiting", {"identity": IDENTITY_CONFIG})
    announce(stack)

    def one_round() -> dict[str, float]:
        settings = {"max_in_flight": str(2 * _CALLERS), "wait_s": "600", "drain_s": "0", "grpc_port": "0"}
        with stack.gateway(**settings) as gateway:
            gateway.await_answer("/v2/models/identity/ready")
            idle_mb = gateway.resident_mb()
            return {"waiting_idle_mb": idle_mb, "waiting_10k_mb": uvloop.run(_resident_while_waiting(gateway))}

    bench.repeat(one_round)


async def _resident_while_waiting(gateway: Program) -> float:
    body = row_body()
    request = (
        f"POST /v2/models/identity/infer HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}"
    ).encode()
    turns = asyncio.Semaphore(_AT_ONCE)
    writers: list[asyncio.StreamWriter] = []

    async def call() -> None:
        async with turns:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(request)
            await writer.drain()
            writers.append(writer)

    try:
        await asyncio.gather(*(call() for _ in range(_CALLERS)))
        async with asyncio.timeout(_PATIENCE_S):
            while await asyncio.to_thread(gateway.metric, "tidegate_gateway_in_flight") < _CALLERS:
                pass  # each look takes its time
        return gateway.resident_mb()
    finally:
        for writer in writers:
            writer.transport.abort()


def _allow_files() -> None:
    """As many open files as callers, for us and for the gateway, which inherits it. Raises BenchmarkError."""
    needed = _CALLERS + 500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < needed:
            raise BenchmarkError(f"{needed} files must be open at a time, {soft} may: raise it, as with ulimit -n")
