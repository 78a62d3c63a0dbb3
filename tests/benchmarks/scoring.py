"""Offline scoring of a topic, beside the floor: a bare loop that reads and writes the same rows.

Run as a script, this file is the floor: one process, uvloop, one aiokafka consumer over all partitions of the source
and one producer (idempotent, acks=all, no linger); each row's value is sent to the same partition of the target, and
at the end everything is flushed. Nothing is decoded, no headers are written, no offsets kept, no transaction. Both
rates count from opening the clients to the last row's acknowledgement (for `score`: the last transaction's commit, and
loading the model), and leave out starting Python.
"""

from __future__ import annotations

import itertools
import re
import sys
import time

import uvloop
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.kafka_connection import KafkaConnection
from schemas.topics import Topics
from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import IDENTITY_CONFIG, PARTITIONS, fill
from tests.benchmarks.stack import BenchmarkError, Stack
from workers.topics import TopicAdmin

_ROWS = 100_000
_SOURCE = "bench-score-source"
_SUMMARY = re.compile(r"scored ([\d,]+) rows in [\d.]+ s \(([\d,]+) rows/s\).* (\d+) failed")


def measure(bench: Bench) -> None:
    """score_rows_s and score_floor_rows_s."""
    rows = bench.rows(_ROWS)
    fill(bench.bootstrap, _SOURCE, rows=rows)
    stack = bench.stack("bench-score", {"identity": IDENTITY_CONFIG})
    stack.provision()
    numbers = itertools.count()

    def one_round() -> dict[str, float]:
        number = next(numbers)
        return {
            "score_floor_rows_s": _floor(stack, f"bench-score-floor-{number}", rows),
            "score_rows_s": _score(stack, f"bench-score-target-{number}", rows),
        }

    bench.repeat(one_round)


def _score(stack: Stack, target: str, rows: int) -> float:
    arguments = ["-m", "workers", "score", "--model", "identity", "--from", _SOURCE, "--to", target, "--no-progress"]
    with stack.command("score", arguments) as scoring:
        output = scoring.end()
    summary = _SUMMARY.search(output)
    if summary is None or _number(summary[1]) != rows or _number(summary[3]):
        raise BenchmarkError(f"{rows} rows were not all scored: {output}")
    return _number(summary[2])


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _floor(stack: Stack, target: str, rows: int) -> float:
    kafka = KafkaConnection(bootstrap=stack.bootstrap)
    admin = TopicAdmin(kafka=kafka, topics=Topics(), partitions=PARTITIONS, replication_factor=1)
    admin.ensure(target, partitions=PARTITIONS)
    with stack.command("score floor", ["-m", "tests.benchmarks.scoring", stack.bootstrap, _SOURCE, target]) as copying:
        copied, duration_s = copying.end().split()
    if int(copied) != rows:
        raise BenchmarkError(f"{copied} of {rows} rows were copied")
    return rows / float(duration_s)


async def _copy(bootstrap: str, source: str, target: str) -> None:
    begun_s = time.perf_counter()
    places = [TopicPartition(source, number) for number in range(PARTITIONS)]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", linger_ms=0)
    async with producer, AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        left = sum((await consumer.end_offsets(places)).values())
        rows = 0
        while rows < left:
            for place, records in (await consumer.getmany(timeout_ms=1000)).items():
                for record in records:
                    await producer.send(target, record.value, partition=place.partition)
                rows += len(records)
        await producer.flush()
        print(rows, time.perf_counter() - begun_s)


if __name__ == "__main__":
    uvloop.run(_copy(*sys.argv[1:]))
