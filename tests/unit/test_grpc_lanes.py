"""Lanes of a gRPC server: calls are taken together, none is lost, and all end with the server."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import grpc
import pytest

from gateway import grpc_lanes
from gateway.grpc_lanes import LANES, Lanes

PATH = "/some.Service/Call"


class Served:
    """A server of one call, whose answers wait for `let_go`."""

    def __init__(self, *, max_calls: int = 1000) -> None:
        self.let_go = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handler: Any = grpc.unary_unary_rpc_method_handler(self._answer)
        self.channel: Any = None
        self.lanes = Lanes(self.server, "some.Service", "Call", handler, max_calls=max_calls)

    async def _answer(self, body: bytes, context: Any) -> bytes:
        self.begun.release()
        await self.let_go.wait()
        return body + b"!"

    async def __aenter__(self) -> Self:
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.channel.close()
        await self.server.stop(1)

    async def call(self, body: bytes, **options: Any) -> Any:
        return await self.channel.unary_unary(PATH)(body, **options)


async def test_calls_that_come_together_are_all_answered() -> None:
    async with Served() as served:
        assert served.lanes.open()
        calls = [asyncio.ensure_future(served.call(b"%d" % number)) for number in range(3 * LANES)]
        for _ in calls:
            await served.begun.acquire()
        served.let_go.set()
        assert await asyncio.gather(*calls) == [b"%d!" % number for number in range(3 * LANES)]


async def test_lanes_end_with_their_server_after_the_calls_that_are_open() -> None:
    async with Served() as served:
        served.lanes.open()
        call = asyncio.ensure_future(served.call(b"last"))
        await served.begun.acquire()
        stopping = asyncio.ensure_future(served.server.stop(20))
        await asyncio.sleep(0)  # the stop has begun
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.call(b"late")
        # The port is closed, or gRPC's core had the call already and gives it up: as the moment has it.
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        served.let_go.set()
        assert await call == b"last!"
        await stopping
    lanes = [task for task in asyncio.all_tasks() if task.get_name().startswith("gRPC lane")]
    await asyncio.wait_for(asyncio.gather(*lanes), 10)


async def test_a_call_too_many_is_refused_and_the_next_one_is_not() -> None:
    async with Served(max_calls=4) as served:
        served.lanes.open()
        calls = [asyncio.ensure_future(served.call(b"")) for _ in range(4 * LANES)]
        (first, *_), _ = await asyncio.wait(calls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(grpc.aio.AioRpcError, match="RESOURCE_EXHAUSTED"):
            await first
        served.let_go.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert await served.call(b"") == b"!"


async def test_with_another_version_of_the_library_calls_are_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_lanes, "_NEEDED", ((object, "gone"),))
    async with Served() as served:
        served.let_go.set()
        assert not served.lanes.open()
        assert await asyncio.gather(*(served.call(b"") for _ in range(100))) == [b"!"] * 100
