"""Gateways come, go and crash under load: whoever calls one that lives gets their answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from local.kafka import LocalKafka
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import BODY, answered, path, worker_of
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.kafka

GATEWAYS = 3
CALLERS = 4  # of each gateway


class Callers:
    """Calls all gateways, each with rows of its own, until told to stop; notes what a living gateway did wrong."""

    def __init__(self, gateways: list[GatewayProcess], echo: EchoWorker) -> None:
        self.gateways = gateways
        self.wrong: list[Any] = []
        self.leaving: set[GatewayProcess] = set()
        self._path = path(echo)
        self._counts: defaultdict[int, int] = defaultdict(int)
        self._news = asyncio.Event()
        self._stopping = False

    async def run(self) -> None:
        await asyncio.gather(*(self._call(index, caller) for index in range(GATEWAYS) for caller in range(CALLERS)))

    def stop(self) -> None:
        self._stopping = True

    async def all_answer(self) -> None:
        """Wait until each gateway has answered once more for each of its callers."""
        wanted = {index: self._counts[index] + CALLERS for index in range(GATEWAYS)}
        async with asyncio.timeout(30):
            while any(self._counts[index] < count for index, count in wanted.items()):
                await self._news.wait()

    async def _call(self, index: int, caller: int) -> None:
        number = 0
        while not self._stopping:
            gateway = self.gateways[index]
            if gateway in self.leaving:
                await asyncio.sleep(0.01)
                continue
            async with gateway.client() as client:
                while not self._stopping and gateway not in self.leaving:
                    number += 1
                    await self._call_once(client, gateway, index, [float(index), float(caller), float(number), 0.0])

    async def _call_once(
        self, client: httpx.AsyncClient, gateway: GatewayProcess, index: int, row: list[float]
    ) -> None:
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": row}]}
        try:
            answer = await client.post(self._path, json=body)
            said: Any = answer.json()["outputs"][0]["data"] if answer.status_code == 200 else answer.text
        except httpx.TransportError as error:
            said = repr(error)
        if said == row:
            self._counts[index] += 1
            self._news.set()
            self._news = asyncio.Event()
        elif gateway not in self.leaving:
            self.wrong.append((index, said))


@contextlib.asynccontextmanager
async def serving(echo: EchoWorker) -> AsyncIterator[None]:
    task = asyncio.ensure_future(echo.serve())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_rolling_gateways_under_load_loses_no_answer_of_a_living_one(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    def new() -> GatewayProcess:
        return stack.enter_context(
            GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path, reply_partitions=6, drain_s=5)
        )

    async with AsyncExitStack() as stack:
        gateways = [new() for _ in range(GATEWAYS)]
        for gateway in gateways:
            await asyncio.to_thread(gateway.ready)
        echo = await stack.enter_async_context(worker_of(kafka.bootstrap, *gateways))
        await stack.enter_async_context(serving(echo))
        callers = Callers(gateways, echo)
        calling = asyncio.ensure_future(callers.run())
        await callers.all_answer()
        for index, kill in enumerate([True, False, True]):
            old = gateways[index]
            callers.leaving.add(old)
            (old.process.kill if kill else old.terminate)()
            await asyncio.to_thread(old.ended)
            fresh = new()
            await asyncio.to_thread(fresh.ready)
            await asyncio.to_thread(fresh.logged, "learn_model", model=echo.model)
            gateways[index] = fresh
            await callers.all_answer()
        callers.stop()
        await calling
    assert callers.wrong == []


async def test_gateways_that_start_together_take_a_partition_each(
    kafka: LocalKafka, prefix: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        gateways = [
            stack.enter_context(
                GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path, reply_partitions=GATEWAYS)
            )
            for _ in range(GATEWAYS)
        ]
        for gateway in gateways:
            await asyncio.to_thread(gateway.ready)
        async with worker_of(kafka.bootstrap, *gateways) as echo:

            async def partition_of(gateway: GatewayProcess) -> int:
                async with gateway.client() as client:
                    _, taken = await answered(echo, client.post(path(echo), json=BODY))
                assert taken.envelope.reply_to is not None
                return taken.envelope.reply_to.partition

            async with asyncio.timeout(30):  # who shares one finds out with its next commit, seconds later at most
                partitions: set[int] = set()
                while len(partitions) < GATEWAYS:
                    partitions = {await partition_of(gateway) for gateway in gateways}
