"""TopicLoad: requests appended to a model's topic at a steady rate, and every outcome that its results topic tells.

Knows the contract of schemas, and Kafka. It judges nothing: what was accepted and what came of it is told as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.outcome import JobState, decode_outcome_record
from schemas.record import Envelope, encode_request_record
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from schemas.topics import Topics
from tests.benchmarks.rows import PARTITIONS
from tests.benchmarks.stack import BenchmarkError, Program, Stack

_TICK_S = 0.01
_READ_MS = 200


@dataclass(frozen=True, slots=True)
class Told:
    """One outcome as the results topic told it. `started_ms` is the worker's clock when its batch ran, 0: never."""

    partition: int
    started_ms: int
    state: JobState
    value: bytes
    header_length: int | None


class TopicLoad:
    """Enter it to begin. Requests go round the topic's partitions; each has one row, its own number."""

    def __init__(self, *, bootstrap: str, prefix: str, model: str, rate_rows_s: float, stored_every: int = 0) -> None:
        """The topics must exist. Of `stored_every` requests one asks for its outcome to be stored, 0: none does."""
        self._bootstrap = bootstrap
        self._topic = Topics(prefix).infer(model)
        self._results = Topics(prefix).results(model)
        self._rate_rows_s = rate_rows_s
        self._stored_every = stored_every
        self._opened = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._sent: set[asyncio.Future[Any]] = set()
        self._appending = True
        self.accepted: set[str] = set()
        self.outcomes: dict[str, list[Told]] = defaultdict(list)

    async def __aenter__(self) -> Self:
        producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all")
        await self._opened.enter_async_context(producer)
        reader = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, auto_offset_reset="earliest")
        await self._opened.enter_async_context(reader)
        places = [TopicPartition(self._results, number) for number in range(PARTITIONS)]
        reader.assign(places)
        await reader.seek_to_end(*places)
        self._tasks = [asyncio.create_task(self._append(producer)), asyncio.create_task(self._read(reader))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._opened.aclose()

    async def stop(self) -> None:
        """Append no more; returns when the broker has answered for all that was."""
        self._appending = False
        await self._tasks[0]
        await asyncio.gather(*self._sent)

    async def collect(self, *, quiet_s: float) -> set[str]:
        """After `stop`: wait until everything accepted has an outcome, or none has come for so long.

        Returns what has none.
        """
        known = -1
        until_s = 0.0
        while missing := self.accepted - self.outcomes.keys():
            self.check()
            if len(self.outcomes) != known:
                known, until_s = len(self.outcomes), time.monotonic() + quiet_s
            elif time.monotonic() > until_s:
                break
            await asyncio.sleep(_TICK_S)
        return missing

    def check(self) -> None:
        """Raise what ended reading or appending, if something did."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise BenchmarkError(f"the load broke off: {error!r}") from error

    async def _append(self, producer: AIOKafkaProducer) -> None:
        number = 0
        begun_s = time.monotonic()
        while self._appending:
            due = int((time.monotonic() - begun_s) * self._rate_rows_s)
            for index in range(number, due):
                await self._send(producer, index)
            number = due
            await asyncio.sleep(_TICK_S)

    async def _send(self, producer: AIOKafkaProducer, number: int) -> None:
        stored = self._stored_every > 0 and number % self._stored_every == 0
        request = InferenceRequest((tensor_from_list("INPUT0", "FP32", (1, 1), [float(number)]),))
        envelope = Envelope(f"row-{number}", source="/benchmarks", stored=stored)
        value, headers = encode_request_record(request, envelope, now_ms=time.time_ns() // 1_000_000)
        sent = await producer.send(self._topic, value, partition=number % PARTITIONS, headers=headers)
        self._sent.add(sent)
        sent.add_done_callback(lambda done: self._note_sent(envelope.id, done))

    def _note_sent(self, id_: str, sent: asyncio.Future[Any]) -> None:
        self._sent.discard(sent)
        if not sent.cancelled() and sent.exception() is None:
            self.accepted.add(id_)

    async def _read(self, reader: AIOKafkaConsumer) -> None:
        while True:
            for records in (await reader.getmany(timeout_ms=_READ_MS)).values():
                for record in records:
                    outcome = decode_outcome_record(record.headers, record.value)
                    self.outcomes[outcome.id].append(
                        Told(
                            outcome.origin.partition,
                            outcome.started_ms,
                            outcome.state,
                            bytes(outcome.value),
                            outcome.header_length,
                        )
                    )


@contextlib.asynccontextmanager
async def worker_beside(stack: Stack, name: str) -> AsyncIterator[Program]:
    """One more worker, starting. Started and ended in a thread, so that a load goes on."""
    running = stack.command(name, ["-m", "workers", "serve"])
    worker = await asyncio.to_thread(running.__enter__)
    try:
        yield worker
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)
