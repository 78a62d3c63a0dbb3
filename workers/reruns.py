"""Reruns: the requests of one lane that run again: after a passing failure, or because an instance hung.

Each waits here until it may: a request goes back to the queue, a batch that never ran is handed out as it is. Decides
with workers/retry.py and `after_hanging`. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable

import structlog

from schemas.model import ModelRef
from workers.answers import Answers
from workers.batch import Arrays
from workers.batch_run import Abandoned, Batch, after_hanging
from workers.bisection import Part
from workers.cancellations import Cancellations
from workers.metrics import ABANDONED, RETRIES
from workers.retry import Retry
from workers.work import Work

log = structlog.get_logger()

_RETRY = Retry(attempts=5, first_ms=50, last_ms=2000)


class Reruns:
    """Lives on the event loop. `requests` and `size_bytes` are of those that wait before they are tried again."""

    def __init__(self, ref: ModelRef, answers: Answers, *, offer: Callable[[Work, int], None]) -> None:
        """`offer(work, rows)` puts a request into the queue again."""
        self._ref = ref
        self._answers = answers
        self._offer = offer
        self._retries = RETRIES.labels(ref.name, ref.version)
        self._waiting: set[Work] = set()
        self.batches: deque[tuple[Batch, Arrays | None]] = deque()  # to run as they are; not assembled where None
        self.requests = 0
        self.size_bytes = 0

    def take(self, batch: Batch, part: Part, took_us: int) -> None:
        """Requests that met a passing failure: each is tried again a little later, unless it is too late for that.

        `took_us`: how long it ran, which counts for those that may run only so long in all.
        """
        assert part.error is not None
        now_ms = time.time_ns() // 1_000_000
        for index in range(part.first, part.first + part.count):
            work = batch.works[index]
            if work.is_over:
                continue
            delay_ms = _RETRY.delay_within_ms(
                work.failed_runs + 1, random.random(), deadline=work.envelope.deadline, now_ms=now_ms
            )
            if delay_ms is None:
                self._answers.fail(work, part.error, stage="infer")
                continue
            work.ran_us += took_us
            work.count_failed_run()
            self._retries.inc()
            self.requests += 1
            self.size_bytes += work.size_bytes
            self._waiting.add(work)
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._offer_again, work, batch.rows[index])

    def end_cancelled(self, cancelled: Cancellations) -> None:
        """End those who wait here and are cancelled; a batch that holds one of them runs without it."""
        waiting = [*self._waiting, *(work for batch, _ in self.batches for work in batch.works)]
        for work in waiting:
            if not work.is_over and cancelled.has(work.delivery.origin):
                self._answers.end(work, cancelled.error(work.delivery.origin))

    def take_abandoned(self, abandoned: Abandoned, *, timeout_ms: int) -> None:
        """What a hanging instance had: the batches that waited, and those of the one that hangs request by request."""
        log.error("abandon_instance", model=str(self._ref), timeout_ms=timeout_ms)
        ABANDONED.labels(self._ref.name).inc()
        self.batches.extend(abandoned.waiting)
        running = abandoned.running
        if running is None:
            return
        self._answers.forget(running)
        batches, error = after_hanging(self._ref.name, running, timeout_ms)
        for work in running.works:
            if error is not None:
                self._answers.fail(work, error, stage="infer")
            elif not work.is_over:
                work.count_failed_run()
        self.batches.extend((batch, None) for batch in batches)

    def _offer_again(self, work: Work, rows: int) -> None:
        self.requests -= 1
        self.size_bytes -= work.size_bytes
        self._waiting.discard(work)
        self._offer(work, rows)
