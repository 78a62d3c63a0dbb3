"""OutcomeRecorder: gives every request its one recorded outcome, and only then acknowledges it.

An outcome goes where its caller looks: to the gateway that waits (reply), or to the results topic, preceded by the
object store where the caller asked for it. A stored outcome is written only if there is none: the first one stands.
The order is fixed: outcome durable, then acknowledged. Knows no Kafka client and nothing of batching.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from schemas.errors import InferenceError
from schemas.outcome import (
    JobState,
    Outcome,
    answer_key,
    decode_stored,
    encode_stored,
    error_value,
    outcome_headers,
    outcome_key,
    state_of,
)
from schemas.record import Envelope, ReplyTo
from schemas.response import InferenceResponse
from schemas.topics import Topics
from schemas.v2 import encode_response
from store.object_store import KeyRefused, ObjectNotFound, ObjectStore, StoreError
from workers.dead_letter import dead_letter_headers
from workers.delivery import Delivery, Intake
from workers.metrics import OUTCOMES
from workers.publisher import Publication, Publisher
from workers.telemetry import worker_tracing
from workers.topics import RequestTopic
from workers.work import Work

log = structlog.get_logger()

T = TypeVar("T")
_outcomes = cache(OUTCOMES.labels)

_STORE_THREADS = 16
_RETRY_FIRST_S = 0.1
_RETRY_LAST_S = 5.0
_SHOWN_CHARS = 120


class OutcomeRecorder:
    """Records outcomes; lives on the event loop."""

    def __init__(
        self,
        *,
        intake: Intake,
        publisher: Publisher,
        store: ObjectStore,
        topics: Topics,
        pool: str,
        tasks: asyncio.TaskGroup,
        claim_above_bytes: int,
    ) -> None:
        """Requests come from the topics that `add_topic` has been told of."""
        self._intake = intake
        self._publisher = publisher
        self._store = store
        self._topics = topics
        self._replies = topics.replies
        self._source = f"/tidegate/pool/{pool}".encode()
        self._epochs: dict[str, int] = {}
        self._claim_above_bytes = claim_above_bytes
        self._threads = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="store")
        self._tasks = tasks
        self._slow: set[asyncio.Task[None]] = set()
        self._partition_counts: dict[str, int] = {}

    def add_topic(self, model: str, topic: RequestTopic) -> None:
        """Requests for a model come from this topic from now on."""
        self._epochs[topic.name] = topic.epoch
        if topic.result_partitions:  # known from the start: no answer has to wait for that, and overtakes none
            self._partition_counts[self._topics.results(model)] = topic.result_partitions

    def succeed(self, answered: Sequence[tuple[Work, InferenceResponse]]) -> None:
        """The requests were run, together."""
        now_ms = time.time_ns() // 1_000_000
        for work, response in answered:
            value, header_length = encode_response(response)
            delivery, envelope = work.delivery, work.envelope
            outcome = Outcome(
                envelope.id,
                JobState.SUCCEEDED,
                delivery.origin,
                value,
                header_length,
                delivery.appended_ms,
                work.started_ms,
                now_ms,
                envelope.traceparent,
                "",
                envelope.tenant,
                envelope.webhook,
                envelope.attempt,
            )
            self._record(delivery, envelope, outcome, None)
        topic = answered[0][0].delivery.partition.topic
        _outcomes(topic, JobState.SUCCEEDED.value).inc(len(answered))

    def fail(
        self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str, started_ms: int = 0
    ) -> None:
        """The request ends without a response; unless it expired or was cancelled, it becomes a dead letter too."""
        now_ms = time.time_ns() // 1_000_000
        outcome = Outcome(
            envelope.id,
            state_of(error),
            delivery.origin,
            error_value(error),
            None,
            delivery.appended_ms,
            started_ms,
            now_ms,
            envelope.traceparent,
            "",
            envelope.tenant,
            envelope.webhook,
            envelope.attempt,
        )
        dead = None
        if outcome.state is JobState.FAILED:
            dead = dead_letter_headers(delivery, error, stage=stage, attempt=envelope.attempt, now_ms=now_ms)
            log.warning(
                "fail_request",
                origin=str(delivery.origin),
                stage=stage,
                code=error.code.wire,
                error=error.message,
            )
        _outcomes(delivery.partition.topic, outcome.state.value).inc()
        if (tracing := worker_tracing()) is not None:
            tracing.failed(delivery, envelope, error, stage=stage)
        self._record(delivery, envelope, outcome, dead)

    async def flush(self) -> None:
        """Wait until every outcome so far is durable and acknowledged. Cancel-safe."""
        while self._slow:
            await asyncio.wait(self._slow)
        await self._publisher.flush()

    def close(self) -> None:
        """Give up what is not durable yet; its records stay unacknowledged."""
        for task in self._slow:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def fetch_claim(self, key: str) -> bytes:
        """The value of a record that was too large for one. Waits while the object store is unavailable.

        Raises ObjectNotFound, or KeyRefused for what can be no key.
        """
        return await self._with_store(lambda: self._store.get(key))

    def _record(
        self, delivery: Delivery, envelope: Envelope, outcome: Outcome, dead: list[tuple[str, bytes]] | None
    ) -> None:
        reply_to = envelope.reply_to
        is_small = len(outcome.value) <= self._claim_above_bytes
        if reply_to is not None and is_small and dead is None and not envelope.stored and self._is_known(reply_to):
            headers = outcome_headers(outcome, self._source)
            intake = self._intake
            self._publisher.publish(
                Publication(
                    reply_to.topic,
                    reply_to.partition,
                    bytes(outcome.value),
                    headers,
                    lambda: intake.acknowledge(delivery),
                )
            )
            return
        task = self._tasks.create_task(self._record_slowly(delivery, envelope, outcome, dead), name="record outcome")
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)

    async def _record_slowly(
        self, delivery: Delivery, envelope: Envelope, outcome: Outcome, dead: list[tuple[str, bytes]] | None
    ) -> None:
        """The ways that need more than one write."""
        lasting = envelope.reply_to is None and not envelope.stored
        if len(outcome.value) > self._claim_above_bytes:
            outcome = await self._claim(outcome, lasting=lasting)
        if envelope.stored:
            outcome = await self._store_outcome(outcome)
            if len(outcome.value) > self._claim_above_bytes:  # stored by one that keeps values in the outcome itself
                outcome = await self._claim(outcome, lasting=False)
        headers = outcome_headers(outcome, self._source)
        number = delivery.partition.number
        model = self._topics.model_of(delivery.partition.topic)
        destination = await self._destination(envelope.reply_to, self._topics.results(model), number)
        writes = [self._written(*destination, outcome.value, headers)]
        if dead is not None:
            value = delivery.value
            if value is not None and len(value) > self._claim_above_bytes:
                key = f"claims/dead/{delivery.origin}"
                await self._with_store(lambda: self._store.put(key, value or b""))
                dead = [*dead, ("tidegate-dead-claim", key.encode())]
                value = None
            writes.append(self._written(self._topics.dead(model), number, value, dead))
        await asyncio.gather(*writes)
        self._intake.acknowledge(delivery)

    def _is_known(self, reply_to: ReplyTo) -> bool:
        return reply_to.topic == self._replies and 0 <= reply_to.partition < self._partition_counts.get(
            reply_to.topic, 0
        )

    async def _destination(self, reply_to: ReplyTo | None, results: str, number: int) -> tuple[str, int]:
        """Where the answer goes. A record must not have us write where nobody waits, or to what is no replies topic:
        its answer is found among the results then.
        """
        if reply_to is not None and reply_to.topic == self._replies:
            count = await self._publisher.partition_count(reply_to.topic)
            if count:
                self._partition_counts[reply_to.topic] = count
            if self._is_known(reply_to):
                return reply_to.topic, reply_to.partition
        if reply_to is not None:
            log.warning("redirect_answer", reply_to=str(reply_to)[:_SHOWN_CHARS])
        return results, number

    async def _store_outcome(self, outcome: Outcome) -> Outcome:
        """Put the outcome where its job id finds it, and return the one that stands there now."""
        key = outcome_key(outcome.origin, self._epochs[outcome.origin.topic])
        data = encode_stored(outcome)
        if await self._with_store(lambda: self._store.put(key, data, if_absent=True)):
            return outcome
        try:
            standing = decode_stored(await self._with_store(lambda: self._store.get(key)))
            # Whoever cancelled a request knows its place only: what is told of it is still this request's.
            return replace(
                standing,
                id=outcome.id,
                created_ms=standing.created_ms or outcome.created_ms,
                traceparent=outcome.traceparent,
                tenant=outcome.tenant,
                webhook=outcome.webhook,
            )
        except InferenceError as error:  # nobody could ever read what stands there
            log.error("replace_outcome", key=key, error=error.message)
            await self._with_store(lambda: self._store.put(key, data))
            return outcome

    async def _claim(self, outcome: Outcome, *, lasting: bool) -> Outcome:
        unique, epoch = secrets.token_hex(8), self._epochs[outcome.origin.topic]
        key = answer_key(outcome.origin, epoch, unique, lasting=lasting)
        await self._with_store(lambda: self._store.put(key, outcome.value))
        return replace(outcome, value=b"", claim=key)

    async def _written(self, topic: str, partition: int, value: Any, headers: list[tuple[str, bytes]]) -> None:
        """Publish one record and wait until it is durable. `partition` is taken modulo the topic's."""
        while not self._partition_counts.get(topic):
            self._partition_counts[topic] = await self._publisher.partition_count(topic)
        durable = asyncio.get_running_loop().create_future()
        self._publisher.publish(
            Publication(
                topic,
                partition % self._partition_counts[topic],
                None if value is None else bytes(value),
                headers,
                lambda: None if durable.done() else durable.set_result(None),
            )
        )
        await durable

    async def _with_store(self, call: Callable[[], T]) -> T:
        """Run a call of the object store in a thread, again and again until the store answers."""
        loop = asyncio.get_running_loop()
        retry_s = _RETRY_FIRST_S
        while True:
            try:
                future: Awaitable[T] = loop.run_in_executor(self._threads, call)
                return await future
            except (ObjectNotFound, KeyRefused):
                raise
            except StoreError as error:  # refused access too: once it is granted, nothing has been lost
                log.warning("reach_store_again", error=repr(error))
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_LAST_S)
