"""The floor: what a round trip through Kafka costs with nothing of tidegate in it.

Two processes with aiokafka: one sends 400 bytes to a topic, the other (this file run as a script) sends them back
through a second topic. Idempotent, acks=all, no linger, one partition each, uvloop on both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.kafka_connection import KafkaConnection
from schemas.topics import Topics
from tests.benchmarks.load import Load
from tests.benchmarks.stack import program
from workers.topics import TopicAdmin

_THERE = TopicPartition("bench-floor-there", 0)
_BACK = TopicPartition("bench-floor-back", 0)
_VALUE_BYTES = 400
_SLOT_BYTES = 4


@contextlib.contextmanager
def echo(bootstrap: str, *, log: Path) -> Iterator[None]:
    """The echo process, ready."""
    kafka = KafkaConnection(bootstrap=bootstrap)
    admin = TopicAdmin(kafka=kafka, topics=Topics(), partitions=1, replication_factor=1)
    for place in (_THERE, _BACK):
        admin.ensure(place.topic, partitions=1)
    with program("echo", ["-m", "tests.benchmarks.floor", bootstrap], log=log, environment={}) as running:
        running.read("echoes")
        yield


def warm_up(bootstrap: str, *, log: Path, run_s: float) -> None:
    """Load for the broker alone: its virtual machine compiles for half a minute what it is asked for most."""
    with echo(bootstrap, log=log):
        round_trips(bootstrap, outstanding=64, run_s=run_s)


def round_trips(bootstrap: str, *, outstanding: int, run_s: float) -> Load:
    """Send round trips for so long, so many at a time."""
    return uvloop.run(_round_trips(bootstrap, outstanding, run_s))


async def _round_trips(bootstrap: str, outstanding: int, run_s: float) -> Load:
    async with _clients(bootstrap, _BACK) as (consumer, producer):
        waiting: dict[int, asyncio.Future[None]] = {}
        latencies_s: list[float] = []
        loop = asyncio.get_running_loop()

        async def read() -> None:
            while True:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    for record in records:
                        waiting[int.from_bytes(record.value[:_SLOT_BYTES])].set_result(None)

        async def send(slot: int, end_s: float) -> None:
            value = slot.to_bytes(_SLOT_BYTES) + bytes(_VALUE_BYTES - _SLOT_BYTES)
            while (begun_s := time.perf_counter()) < end_s:
                back = waiting[slot] = loop.create_future()
                await producer.send(_THERE.topic, value, partition=_THERE.partition)
                await back
                latencies_s.append(time.perf_counter() - begun_s)

        reading = asyncio.create_task(read())
        begun_s = time.perf_counter()
        await asyncio.gather(*(send(slot, begun_s + run_s) for slot in range(outstanding)))
        duration_s = time.perf_counter() - begun_s
        reading.cancel()
    cuts_s = statistics.quantiles(latencies_s, n=100)
    return Load(requests=len(latencies_s), duration_s=duration_s, p50_ms=1000 * cuts_s[49], p99_ms=1000 * cuts_s[98])


async def _echo(bootstrap: str) -> None:
    async with _clients(bootstrap, _THERE) as (consumer, producer):
        print('{"echoes": true}', flush=True)
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    await producer.send(_BACK.topic, record.value, partition=_BACK.partition)


@contextlib.asynccontextmanager
async def _clients(bootstrap: str, source: TopicPartition) -> Any:  # of aiokafka, which publishes no types
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", linger_ms=0)
    async with producer, AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([source])
        await consumer.seek_to_end(source)
        await consumer.position(source)  # seeking is lazy; records from now on must be seen
        yield consumer, producer


if __name__ == "__main__":
    uvloop.run(_echo(sys.argv[1]))
