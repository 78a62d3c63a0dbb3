"""WebhookDeliverer: what becomes of each webhook: delivered, put off, tried again later, or given up. Never forgotten.

A record is done when the webhook's fate is durable: state written, and the next attempt or dead letter acknowledged by
the broker. While Kafka or the store is away, work waits for it. Knows no Kafka client and no HTTP.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import structlog

from gateway.ended_jobs import EndedJobs
from gateway.group_reader import Work
from gateway.kafka_client import Record
from gateway.retrying import insist
from gateway.webhook_delivery import WebhookDelivery, decode_delivery
from gateway.webhook_endpoints import Admission, Endpoint, WebhookEndpoints
from gateway.webhook_messages import WebhookMessages
from gateway.webhook_metrics import WebhookMetrics
from gateway.webhook_queue import WebhookQueue
from gateway.webhook_schedule import Schedule
from gateway.webhook_sender import Attempt, WebhookSender
from gateway.webhook_states import WebhookStage, WebhookState, WebhookStates
from gateway.webhook_url import origin_of
from schemas.errors import InferenceError
from schemas.outcome import Outcome, decode_outcome_record
from schemas.record import WEBHOOK_HEADER

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_DOWN = Attempt("down", error="not attempted: the endpoint has failed several times in a row and is left alone a while")
_GONE = Attempt("lost", error="the job's outcome is not in the object store any more", final=True)
_NO_MODEL = Attempt("lost", error="no model has the job's topic any more", final=True)


class WebhookDeliverer:
    """Takes records of results topics and of the retry topic. Cancelled, it leaves a record to be read again."""

    def __init__(
        self,
        *,
        jobs: EndedJobs,
        states: WebhookStates,
        queue: WebhookQueue,
        messages: WebhookMessages,
        sender: WebhookSender,
        endpoints: WebhookEndpoints,
        schedule: Schedule,
        metrics: WebhookMetrics,
    ) -> None:
        self._jobs = jobs
        self._states = states
        self._queue = queue
        self._messages = messages
        self._sender = sender
        self._endpoints = endpoints
        self._schedule = schedule
        self._metrics = metrics
        self._heads: dict[int, int] = {}
        self._under_way: dict[int, int] = {}

    def take(self, record: Record) -> Work | int | None:
        """What to do with a record, for `GroupReader`."""
        if record.topic != self._queue.retry_topic:
            if any(name == WEBHOOK_HEADER for name, _ in record.headers):
                return self._take_result(record)
            return None
        try:
            delivery = decode_delivery(record.value)
        except InferenceError as error:
            self._metrics.undecodable.inc()
            _log.error("skip_webhook_record", offset=record.offset, partition=record.partition, error=error.message)
            return None
        if delivery.ready_ms > _now_ms():
            self._heads[record.partition] = delivery.created_ms
            return delivery.ready_ms
        self._heads.pop(record.partition, None)
        return self._take_waiting(delivery)

    def oldest_s(self, held: Callable[[int], bool]) -> float:
        """The age of the oldest job whose webhook is attempted now or comes next in a partition that is `held`."""
        heads = (created_ms for partition, created_ms in self._heads.items() if held(partition))
        oldest_ms = min((*heads, *self._under_way.values()), default=0)
        return max(0.0, (_now_ms() - oldest_ms) / 1000) if oldest_ms else 0.0

    async def _take_result(self, record: Record) -> None:
        try:
            outcome = decode_outcome_record(record.headers, record.value)
        except InferenceError as error:
            self._metrics.undecodable.inc()
            _log.error("skip_result", topic=record.topic, offset=record.offset, error=error.message)
            return
        epoch = await self._jobs.epoch(outcome.origin.topic)
        if epoch is None:
            await self._end(WebhookDelivery.of(outcome, 0), _NO_MODEL, "lost")
            return
        await _insist(lambda: self._jobs.keep(record, outcome, epoch))
        await self._deliver(WebhookDelivery.of(outcome, epoch), outcome)

    async def _take_waiting(self, delivery: WebhookDelivery) -> None:
        now_ms = _now_ms()
        if delivery.due_ms > now_ms:
            await _insist(lambda: self._queue.wait(delivery, now_ms=_now_ms()))
        else:
            await self._deliver(delivery, None)

    async def _deliver(self, delivery: WebhookDelivery, outcome: Outcome | None) -> None:
        if await self._is_repeat(delivery):
            return
        endpoint = (delivery.tenant, origin_of(delivery.url))
        # Somebody asked for it, or it is the last one: that is worth asking an endpoint that is left alone.
        probe = (delivery.generation > 0 and not delivery.failures) or self._schedule.is_last(delivery.failures)
        admission = self._endpoints.admit(endpoint, now_ms=_now_ms(), probe=probe)
        if admission is Admission.BUSY:
            await self._postpone(delivery, endpoint)
        elif admission is Admission.DOWN:
            await self._conclude(delivery, _DOWN)
        else:
            await self._conclude(delivery, await self._admitted(endpoint, delivery, outcome))

    async def _is_repeat(self, delivery: WebhookDelivery) -> bool:
        state = await _insist(lambda: self._states.load(delivery.origin, delivery.epoch))
        if state is None or not state.supersedes(delivery):
            return False
        self._metrics.repeats.inc()
        return True

    async def _admitted(self, endpoint: Endpoint, delivery: WebhookDelivery, outcome: Outcome | None) -> Attempt:
        """An attempt when its turn comes."""
        ended = False
        try:
            async with self._endpoints.turn(endpoint):
                if self._endpoints.is_down(endpoint, now_ms=_now_ms()):
                    return _DOWN
                begun_s = time.perf_counter()
                attempt = await self._attempt(delivery, outcome)
                if attempt.kind != "lost":
                    took_ms = 1000 * (time.perf_counter() - begun_s)
                    self._endpoints.end(endpoint, ok=attempt.alive, now_ms=_now_ms(), took_ms=took_ms)
                    ended = True
                return attempt
        finally:
            if not ended:
                self._endpoints.release(endpoint)

    async def _attempt(self, delivery: WebhookDelivery, outcome: Outcome | None) -> Attempt:
        outcome = outcome or await _insist(lambda: self._jobs.load(delivery))
        if outcome is None:
            return _GONE
        self._under_way[id(delivery)] = delivery.created_ms
        begun_s = time.perf_counter()
        try:
            body = self._messages.body(delivery, outcome)
            return await self._sender.post(delivery.url, self._messages.headers(delivery, body), body)
        except Exception as error:  # the last resort of a delivery: one that fails oddly is tried again, and told of
            _log.exception("attempt_webhook_failed", origin=str(delivery.origin))
            return Attempt("error", error=f"an unexpected {type(error).__name__}; the log says more", alive=True)
        finally:
            del self._under_way[id(delivery)]
            self._metrics.attempt_seconds.observe(time.perf_counter() - begun_s)

    async def _postpone(self, delivery: WebhookDelivery, endpoint: Endpoint) -> None:
        """Its endpoint has enough to do. This is no failure, so it does not use the schedule up."""
        self._metrics.postponed.inc()
        due_ms = self._endpoints.reserve(endpoint, now_ms=_now_ms())
        later = msgspec.structs.replace(delivery, due_ms=due_ms)
        await _insist(lambda: self._queue.wait(later, now_ms=_now_ms()))

    async def _conclude(self, delivery: WebhookDelivery, attempt: Attempt) -> None:
        self._metrics.attempts.labels(attempt.kind).inc()
        now_ms = _now_ms()
        delivery = msgspec.structs.replace(
            delivery,
            attempts=delivery.attempts + (attempt is not _DOWN and attempt.kind != "lost"),
            since_ms=delivery.since_ms or now_ms,
        )
        if attempt.taken:
            await self._end(delivery, attempt, "delivered")
            return
        if await self._is_repeat(delivery):  # taken meanwhile by way of another process: that stands
            return
        failed = msgspec.structs.replace(delivery, failures=delivery.failures + 1, error=attempt.error)
        due_ms = self._schedule.due_ms(
            failed.failures,
            since_ms=failed.since_ms,
            now_ms=now_ms,
            chance=random.random(),
            retry_after_s=attempt.retry_after_s,
        )
        if attempt.final or due_ms is None:
            await self._end(failed, attempt, _result_of(attempt))
            return
        waiting = msgspec.structs.replace(failed, due_ms=due_ms)
        # The next attempt first: a state that announces one which does not exist would be the end of the webhook.
        await _insist(lambda: self._queue.wait(waiting, now_ms=_now_ms()))
        await self._keep(waiting, attempt, WebhookStage.PENDING)
        _log.info("retry_webhook", **_told(waiting, attempt), in_s=round((due_ms - now_ms) / 1000, 1))

    async def _end(self, delivery: WebhookDelivery, attempt: Attempt, result: str) -> None:
        """Nothing more will be attempted."""
        if attempt.taken:
            await self._keep(delivery, attempt, WebhookStage.DELIVERED)
            _log.info("deliver_webhook", **_told(delivery, attempt))
        else:
            dead = msgspec.structs.replace(delivery, error=attempt.error, due_ms=0, ready_ms=0, dead_ms=_now_ms())
            await _insist(lambda: self._queue.bury(dead))
            await self._keep(dead, attempt, WebhookStage.FAILED)
            _log.warning("give_webhook_up", **_told(dead, attempt), result=result)
        self._metrics.deliveries.labels(result).inc()

    async def _keep(self, delivery: WebhookDelivery, attempt: Attempt, stage: WebhookStage) -> None:
        now_ms = _now_ms()
        state = WebhookState(
            stage,
            url=delivery.url,
            generation=delivery.generation,
            failures=delivery.failures,
            attempts=delivery.attempts,
            status=attempt.status,
            error=attempt.error,
            first_ms=delivery.since_ms,
            last_ms=now_ms,
            next_ms=delivery.due_ms if stage is WebhookStage.PENDING else 0,
            delivered_ms=now_ms if stage is WebhookStage.DELIVERED else 0,
        )
        await _insist(lambda: self._states.keep(delivery.origin, delivery.epoch, state))


def _insist(work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    return insist(work, event="webhook_waits")


def _result_of(attempt: Attempt) -> str:
    if not attempt.final:
        return "exhausted"
    return attempt.kind if attempt.kind in ("refused", "lost") else "gone"


def _told(delivery: WebhookDelivery, attempt: Attempt) -> dict[str, Any]:
    """What the log may know: not the URL's path, which may be a secret of the receiver's."""
    return {
        "origin": str(delivery.origin),
        "tenant": delivery.tenant,
        "endpoint": origin_of(delivery.url),
        "status": attempt.status,
        "error": attempt.error,
        "attempts": delivery.attempts,
        "generation": delivery.generation,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
