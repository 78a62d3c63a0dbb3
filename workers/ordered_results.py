"""OrderedResults: outcomes of a scored topic, held until everything before them in their partition is done too.

So results leave in the order of their sources, and a checkpoint's offsets say all that there is to say. Knows no Kafka
client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.errors import InferenceError
from schemas.outcome import JobState, Outcome, error_value, outcome_headers, state_of
from schemas.record import Envelope
from schemas.response import InferenceResponse
from schemas.v2 import encode_response
from store import ObjectStore
from workers.delivery import Delivery, Partition
from workers.publisher import Publication
from workers.work import Work

_MAX_WAITING_BYTES = 64 * 1024 * 1024  # results waiting for a checkpoint, beyond which reading pauses
_CLAIM_ABOVE_BYTES = 512 * 1024


@dataclass(slots=True)
class Score:
    """What a run did. A row is a request of the source topic; `duration_s` includes loading the model."""

    rows: int = 0
    failed: int = 0
    batches: float = 0.0
    checkpoints: int = 0
    duration_s: float = 0.0
    interrupted: bool = False

    @property
    def rows_per_s(self) -> float:
        """Rate over the whole run."""
        return self.rows / self.duration_s if self.duration_s else 0.0

    @property
    def mean_batch(self) -> float:
        """Requests per batch."""
        return (self.rows - self.failed) / self.batches if self.batches else 0.0


class OrderedResults:
    """Holds outcomes until everything before them in their partition is done too. A Recorder (see workers/work.py)."""

    def __init__(self, topic: str, *, partitions: int, source: bytes, store: ObjectStore) -> None:
        self._topic = topic
        self._partition_count = partitions
        self._source = source
        self._store = store
        self._waiting: dict[Partition, deque[Delivery]] = {}
        self._results: dict[Delivery, Publication] = {}
        self._room = asyncio.Event()
        self._room.set()
        self._waiting_bytes = 0
        self._missing = 0
        self._complete = asyncio.Event()
        self._complete.set()
        self.score = Score()

    def expect(self, delivery: Delivery) -> None:
        """Note the order of the source."""
        self._missing += 1
        self._complete.clear()
        self._waiting.setdefault(delivery.partition, deque()).append(delivery)

    async def has_room(self) -> None:
        """Wait while too many results wait for a checkpoint. Cancel-safe."""
        await self._room.wait()

    async def is_complete(self) -> None:
        """Wait until everything expected has its outcome. Cancel-safe."""
        await self._complete.wait()

    def succeed(self, answered: Sequence[tuple[Work, InferenceResponse]]) -> None:
        """The requests were run, together."""
        for work, response in answered:
            value, header_length = encode_response(response)
            self.score.batches += 1 / response.parameters["batch_requests"]
            self._add(work.delivery, work.envelope, JobState.SUCCEEDED, value, header_length, work.started_ms)

    def fail(
        self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str, started_ms: int = 0
    ) -> None:
        """The request failed: its row says why."""
        self.score.failed += 1
        self._add(delivery, envelope, state_of(error), error_value(error), None, started_ms)

    async def fetch_claim(self, key: str) -> bytes:
        """The value of a record that was too large for one. Raises ObjectNotFound, StoreError."""
        return await asyncio.to_thread(self._store.get, key)

    async def flush(self) -> None:
        """Nothing waits here that a checkpoint does not take."""

    async def claim(self, publication: Publication) -> Publication:
        """Put a value that is too large for a record into the object store; the record then refers to it."""
        origin = dict(publication.headers)["tidegate-origin"].decode()
        key = f"claims/{self._topic}/{origin}"
        await asyncio.to_thread(self._store.put, key, publication.value or b"")
        headers = [*publication.headers, ("tidegate-claim", key.encode())]
        return Publication(publication.topic, publication.partition, b"", headers, _nobody_waits)

    def take(self) -> list[tuple[Delivery, Publication]]:
        """Everything whose predecessors are done, in the order of the source."""
        taken: list[tuple[Delivery, Publication]] = []
        for waiting in self._waiting.values():
            while waiting and waiting[0] in self._results:
                delivery = waiting.popleft()
                taken.append((delivery, self._results.pop(delivery)))
        self.score.rows += len(taken)
        self._waiting_bytes -= sum(len(publication.value or b"") for _, publication in taken)
        if self._waiting_bytes < _MAX_WAITING_BYTES:
            self._room.set()
        return taken

    def _add(
        self,
        delivery: Delivery,
        envelope: Envelope,
        state: JobState,
        value: bytes,
        header_length: int | None,
        started_ms: int,
    ) -> None:
        outcome = Outcome(
            envelope.id,
            state,
            delivery.origin,
            value,
            header_length,
            delivery.appended_ms,
            started_ms,
            time.time_ns() // 1_000_000,
            envelope.traceparent,
            "",
            envelope.tenant,
            envelope.webhook,
        )
        number = delivery.partition.number % self._partition_count
        headers = outcome_headers(outcome, self._source)
        self._results[delivery] = Publication(self._topic, number, value, headers, _nobody_waits)
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        self._waiting_bytes += len(value)
        if self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._room.clear()


def is_large(publication: Publication) -> bool:
    """Whether a value does not belong into a record."""
    return len(publication.value or b"") > _CLAIM_ABOVE_BYTES


def _nobody_waits() -> None:
    pass
