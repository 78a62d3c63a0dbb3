"""Work: one request inside the worker, from being decoded until its outcome is recorded; and Recorder, who records.

Knows no Kafka client. Serving records by workers/recorder.py, offline scoring by workers/score.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from schemas.deadline import Deadline
from schemas.errors import InferenceError
from schemas.record import Envelope
from schemas.request import InferenceRequest
from schemas.response import InferenceResponse
from workers.delivery import Delivery


@dataclass(slots=True, eq=False)
class Work:
    """A request with where it came from.

    `size_bytes` is what its value holds in memory. `started_ms` is the wall clock when it ran, 0 before. `failed_runs`
    counts runs here that failed and were followed by another; `envelope.attempt` goes with it. `arrived_us`: at the
    broker, by this process's clock. `ran_us`: how long those of its runs took that failed in passing. `is_over`: it has
    its outcome already, whatever may yet come of it; the event loop sets it, instances' threads read it.
    """

    delivery: Delivery
    envelope: Envelope
    request: InferenceRequest
    size_bytes: int = 0
    started_ms: int = 0
    failed_runs: int = 0
    arrived_us: int = 0
    ran_us: int = 0
    is_over: bool = False

    def count_failed_run(self) -> None:
        """A run has failed, which is no verdict: there will be another one."""
        self.failed_runs += 1
        self.envelope = replace(self.envelope, attempt=self.envelope.attempt + 1)

    @property
    def begin_by(self) -> Deadline | None:
        """From when it must not begin to run. One that has begun once was in time: only its deadline counts then."""
        return self.envelope.deadline if self.failed_runs else self.envelope.begin_by

    @property
    def wanted(self) -> frozenset[str] | None:
        """Names of the outputs that the caller asked for; None: all."""
        outputs = self.request.outputs
        return frozenset(output.name for output in outputs) if outputs else None


class Recorder(Protocol):
    """Gives every request its one outcome, and acknowledges it once that is durable."""

    def succeed(self, answered: Sequence[tuple[Work, InferenceResponse]]) -> None:
        """The requests were run, together."""
        ...

    def fail(
        self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str, started_ms: int = 0
    ) -> None:
        """The request ends without a response. `stage` is decode, queue, load or infer."""
        ...

    async def fetch_claim(self, key: str) -> bytes:
        """The value of a record that was too large for one. Raises ObjectNotFound."""
        ...

    async def flush(self) -> None:
        """Wait until every outcome so far is durable. Cancel-safe."""
        ...
