"""The control topic out of reach: at the start it is waited for, later its following goes on by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.outcome import JobState
from tests.integration.control_client import ControlClient
from tests.integration.topic_client import TopicClient, rows_request, values_of
from tests.integration.worker_process import Installation

pytestmark = pytest.mark.kafka


async def test_a_worker_waits_for_the_control_topic_and_follows_it_through_an_outage(
    prefix: str, tmp_path: Path
) -> None:
    with LocalKafka() as broker:
        site = Installation(broker.bootstrap, prefix, tmp_path)
        site.add_device("dev")
        site.add_device("other")
        async with TopicClient(site.bootstrap, prefix) as client:
            await client.provision("dev", "other")
            control = ControlClient(client)
            sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(2)])
            await control.cancel(sent[0][1])
        await asyncio.to_thread(broker.stop)
        async with site.worker() as worker:
            await worker.logged("wait_to_start")
            await asyncio.to_thread(broker.start)
            await worker.ready()
            async with TopicClient(site.bootstrap, prefix) as client:
                outcomes = await (await client.results("dev")).answered(id_ for id_, _ in sent)
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(broker.start)
            async with TopicClient(site.bootstrap, prefix) as client:
                control = ControlClient(client)
                await control.load("other")
                await worker.logged('"load_model"', '"other/1"')
                await control.model("other", lambda model: model.state == "ready")
            worker.terminate()
            assert await worker.ended() == 0
    assert outcomes[sent[0][0]].state is JobState.CANCELLED
    assert values_of(outcomes[sent[1][0]]) == [1]
