"""Offline scoring on a real broker: exactly once, in the order of the source, however often it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from local.kafka import LocalKafka
from schemas.deadline import Deadline
from schemas.outcome import JobState, Outcome, decode_outcome_record
from schemas.record import Envelope, encode_request_record
from tests.integration.topic_client import response_of, rows_request, values_of
from tests.integration.worker_process import Installation

PARTITIONS = 2
_PATIENCE_S = 60.0

Row = tuple[str, JobState, list[float]]


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def create_topic(site: Installation, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=site.bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": PARTITIONS, "replication_factor": 1}})
        admin.wait_for_topics([topic])


async def fill(site: Installation, topic: str, count: int, *, transactional: bool = False) -> None:
    """`count` requests whose one row holds their number, in turn on the partitions."""
    await asyncio.to_thread(create_topic, site, topic)
    producer = AIOKafkaProducer(
        bootstrap_servers=site.bootstrap, acks="all", transactional_id=f"{topic}-filler" if transactional else None
    )
    async with producer:
        sent = []
        if transactional:
            await producer.begin_transaction()
        for number in range(count):
            envelope = Envelope(f"{topic}-{number}", deadline=Deadline(1), model_version="1")  # long past
            value, headers = encode_request_record(rows_request([float(number)]), envelope, now_ms=0)
            sent.append(await producer.send(topic, value, partition=number % PARTITIONS, headers=headers))
        await asyncio.gather(*sent)
        if transactional:
            await producer.commit_transaction()


@asynccontextmanager
async def score(site: Installation, source: str, target: str, *more: str) -> AsyncIterator[Process]:
    """The command, running; it is killed if the test ends before it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "workers", "score", "--model", "dev", "--from", source, "--to", target),
        *("--checkpoint-s", "0.2", *more),
        env={**os.environ, **site.environment()},
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: Process) -> tuple[int, str, str]:
    async with asyncio.timeout(_PATIENCE_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def read_committed(site: Installation, topic: str, *, at_least: int = 0) -> dict[int, list[Row]]:
    """What a reader of committed records sees by partition: at least so many rows, and then all that there are.

    A commit is answered before its markers stand in every partition: only then the rows are to be seen.
    """
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    rows: dict[int, list[Row]] = {number: [] for number in range(PARTITIONS)}
    async with AIOKafkaConsumer(
        bootstrap_servers=site.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(places)
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    rows[place.partition] += [row_of(decode_outcome_record(it.headers, it.value)) for it in records]
                ends = await consumer.end_offsets(places)
                at_end = all([await consumer.position(place) >= ends[place] for place in places])
                if at_end and sum(map(len, rows.values())) >= at_least:
                    return rows


async def versions_of(site: Installation, topic: str) -> set[str]:
    """The model versions that gave the two rows of a topic."""
    async with AIOKafkaConsumer(topic, bootstrap_servers=site.bootstrap, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(_PATIENCE_S):
            records = [await consumer.getone() for _ in range(2)]
    outcomes = [decode_outcome_record(record.headers, record.value) for record in records]
    return {response_of(outcome).model_version for outcome in outcomes}


def row_of(outcome: Outcome) -> Row:
    values = values_of(outcome) if outcome.state is JobState.SUCCEEDED else []
    return str(outcome.origin), outcome.state, values


def expected(source: str, count: int) -> dict[int, list[Row]]:
    return {
        number: [
            (f"{source}/{number}/{offset}", JobState.SUCCEEDED, [float(offset * PARTITIONS + number)])
            for offset in range(count // PARTITIONS)
        ]
        for number in range(PARTITIONS)
    }


async def test_a_topic_is_scored_once_in_its_order(site: Installation) -> None:
    site.add_device("dev")
    await fill(site, f"{site.prefix}-in", 400)
    async with score(site, f"{site.prefix}-in", f"{site.prefix}-out") as process:
        status, out, _ = await ended(process)
    assert status == 0
    assert out.startswith("scored 400 rows in ")
    assert await read_committed(site, f"{site.prefix}-out", at_least=400) == expected(f"{site.prefix}-in", 400)
    async with score(site, f"{site.prefix}-in", f"{site.prefix}-out") as process:  # again: nothing is left to do
        assert (await ended(process))[1].startswith("scored 0 rows in ")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_scoring_that_was_stopped_ends_row_for_row_as_one_that_was_not(
    site: Installation, how: signal.Signals
) -> None:
    site.add_device("dev", max_batch_size=8, execute_base_ms=4)
    source, target = f"{site.prefix}-in", f"{site.prefix}-out"
    await fill(site, source, 3000)
    await asyncio.to_thread(create_topic, site, target)
    async with score(site, source, target) as process:
        seen = await read_committed(site, target, at_least=1)
        process.send_signal(how)
        status, _, err = await ended(process)
    assert sum(map(len, seen.values())) < 3000
    assert status == (-signal.SIGKILL if how is signal.SIGKILL else 130), err
    partly = await read_committed(site, target)
    assert sum(map(len, partly.values())) < 3000
    async with score(site, source, target) as process:
        status, _, err = await ended(process)
    assert status == 0, err
    assert await read_committed(site, target, at_least=3000) == expected(source, 3000)


async def test_the_version_that_is_asked_for_scores_whatever_the_records_asked_for(site: Installation) -> None:
    site.add_device("dev")
    (site.repository / "dev" / "2").mkdir()
    with (site.repository / "dev" / "config.pbtxt").open("a") as config:
        config.write("version_policy { all {} }\n")
    source, target = f"{site.prefix}-in", f"{site.prefix}-out"
    await fill(site, source, 2)
    async with score(site, source, target, "--version", "1") as process:
        assert (await ended(process))[0] == 0
    async with score(site, source, f"{target}-2") as process:
        assert (await ended(process))[0] == 0
    for topic, version in ((target, "1"), (f"{target}-2", "2")):
        assert await versions_of(site, topic) == {version}


async def test_a_row_that_fails_keeps_its_place_and_says_why(site: Installation) -> None:
    site.add_device("dev", fail_value=7.0)
    source, target = f"{site.prefix}-in", f"{site.prefix}-out"
    await fill(site, source, 20)
    async with score(site, source, target) as process:
        status, out, _ = await ended(process)
    assert (status, ", 1 failed, " in out) == (0, True)
    wanted = expected(source, 20)
    wanted[1][3] = (f"{source}/1/3", JobState.FAILED, [])
    assert await read_committed(site, target, at_least=20) == wanted


async def test_transaction_markers_at_the_end_of_the_source_do_not_hold_it_up(site: Installation) -> None:
    site.add_device("dev")
    source, target = f"{site.prefix}-in", f"{site.prefix}-out"
    await fill(site, source, 100, transactional=True)
    async with score(site, source, target) as process:
        status, out, err = await ended(process)
    assert (status, out.startswith("scored 100 rows in ")) == (0, True), err


async def test_a_source_that_does_not_exist_is_named(site: Installation) -> None:
    site.add_device("dev")
    async with score(site, "nowhere", f"{site.prefix}-out") as process:
        status, _, err = await ended(process)
    assert (status, "there is no topic 'nowhere'" in err) == (1, True), err


async def test_a_second_scorer_of_the_same_range_fences_the_first_and_no_row_is_twice(site: Installation) -> None:
    site.add_device("dev", max_batch_size=8, execute_base_ms=4)
    source, target = f"{site.prefix}-in", f"{site.prefix}-out"
    await fill(site, source, 2000)
    await asyncio.to_thread(create_topic, site, target)
    async with score(site, source, target) as first:
        await read_committed(site, target, at_least=1)
        async with score(site, source, target) as second:
            statuses = {(await ended(process))[0] for process in (first, second)}
    if 0 not in statuses:  # each fenced the other at some point: who comes alone ends it
        async with score(site, source, target) as process:
            assert (await ended(process))[0] == 0
    assert await read_committed(site, target, at_least=2000) == expected(source, 2000)
