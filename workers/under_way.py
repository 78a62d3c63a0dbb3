"""UnderWay: the batches of one lane that are submitted and not finished, and who in them is not to be waited for.

A thread in a model cannot be stopped. So a request that runs for longer than it may, or is cancelled, is answered at
once and masked out: its neighbours' answers come as usual, and its own part of the outputs is thrown away. Knows no
instance and no Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.answers import Answers
from workers.batch_run import Batch, ran_too_long
from workers.cancellations import Cancellations


@dataclass(slots=True, eq=False)
class UnderWay:
    """Lives on the event loop. `model` is for messages."""

    model: str
    answers: Answers
    _batches: set[Batch] = field(default_factory=set)
    _timed: set[Batch] = field(default_factory=set)  # with a request that has an execution timeout of its own

    def begin(self, batch: Batch) -> None:
        """A batch is on its way to an instance."""
        self._batches.add(batch)
        for work in batch.works:
            if work.envelope.execution_timeout_ms:
                self._timed.add(batch)
                break

    def leave(self, batch: Batch) -> None:
        """It has come back, or its instance was given up. Idempotent."""
        self._batches.discard(batch)
        self._timed.discard(batch)

    def end_cancelled(self, cancelled: Cancellations) -> None:
        """End the requests that are cancelled."""
        for batch in self._batches:
            for work in batch.works:
                if not work.is_over and cancelled.has(work.delivery.origin):
                    if not batch.begun_us:
                        work.started_ms = 0
                    self.answers.end(work, cancelled.error(work.delivery.origin))

    def end_overdue(self, at_us: int) -> None:
        """End the requests that have run for longer than they may."""
        for batch in self._timed:
            begun_us = batch.begun_us
            for work in batch.works if begun_us else ():
                timeout_ms = work.envelope.execution_timeout_ms
                if timeout_ms and not work.is_over and begun_us + 1000 * timeout_ms - work.ran_us <= at_us:
                    self.answers.end(work, ran_too_long(self.model, timeout_ms))

    def next_due_us(self, at_us: int) -> int | None:
        """When to call `end_overdue`; None: never. What has not begun may begin at any moment."""
        if not self._timed:
            return None
        return min(
            (
                (batch.begun_us or at_us) + 1000 * work.envelope.execution_timeout_ms - work.ran_us
                for batch in self._timed
                for work in batch.works
                if work.envelope.execution_timeout_ms and not work.is_over
            ),
            default=None,
        )
