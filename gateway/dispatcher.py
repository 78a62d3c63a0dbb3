"""Dispatcher: one request from admission to its answer, or to the job id under which the answer will be found.

No request hangs: it ends with its reply, with a job id once the broker has acknowledged it, or with UNAVAILABLE.
Knows no HTTP and no Kafka client.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import msgspec
import structlog

from gateway.broker import REQUEST_TIMEOUT_S, Broker, BrokerError, Record
from gateway.call import Call
from gateway.job_id import Job, encode_job_id
from gateway.outbox import Handed
from gateway.outcomes import Outcomes
from gateway.tracing import Tracing
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import Outcome
from schemas.record import Envelope, ReplyTo, request_headers
from schemas.request import InferenceRequest
from schemas.topics import Topics
from schemas.v2 import encode_request

_log = structlog.get_logger(__name__)


class Accepted(msgspec.Struct, frozen=True):
    """The broker holds the request; its outcome will be found under `job_id`."""

    job_id: str


class _Waiter:
    """A request in flight. Times are the event loop's, in seconds."""

    __slots__ = ("deadline_s", "future", "give_up_s", "handed", "timer")

    def __init__(self, future: asyncio.Future[Record | None], give_up_s: float, deadline_s: float) -> None:
        self.future = future  # the reply; None: the wait is spent and the broker has acknowledged
        self.give_up_s = give_up_s
        self.deadline_s = deadline_s  # for the acknowledgement
        self.handed: Handed | None = None
        self.timer: asyncio.TimerHandle | None = None

    def note_end(self, handed: Handed) -> None:
        """The broker has taken the record, or it has failed."""
        if self.future.done():
            return
        if handed.error is not None:
            self.future.set_exception(_not_taken(handed.error))
        elif self.future.get_loop().time() >= self.give_up_s:
            self.future.set_result(None)

    def look(self) -> None:
        """End what has run out of time, and look again when the next time runs out."""
        if self.future.done():
            return
        loop = self.future.get_loop()
        now_s = loop.time()
        acknowledged = self.handed is not None and self.handed.has_ended
        if acknowledged and now_s >= self.give_up_s:
            self.future.set_result(None)
        elif not acknowledged and now_s >= self.deadline_s:
            self.future.set_exception(_not_acknowledged())
        else:  # without an acknowledgement only that decides between a job id and a failure
            if self.timer is not None:
                self.timer.cancel()
            self.timer = loop.call_at(self.give_up_s if acknowledged else self.deadline_s, self.look)


class Dispatcher:
    """Admits, produces, waits. `answer` is how replies come in."""

    def __init__(
        self,
        *,
        broker: Broker,
        outcomes: Outcomes,
        topics: Topics,
        gateway_id: str,
        job_key: bytes,
        max_in_flight: int,
        claim_above_bytes: int,
    ) -> None:
        self._broker = broker
        self._outcomes = outcomes
        self._topics = topics
        self._source = f"/tidegate/gateway/{gateway_id}"
        self._id_prefix = f"{gateway_id}-"
        self._numbers = itertools.count(1)
        self._job_key = job_key
        self._max_in_flight = max_in_flight
        self._claim_above_bytes = claim_above_bytes
        self._tracing = Tracing.if_on()
        self._reply_to: ReplyTo | None = None
        self._waiters: dict[bytes, _Waiter] = {}
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests admitted and not yet answered."""
        return self._in_flight

    def open(self, *, reply_partition: int) -> None:
        """Admit requests from now on, answers to this partition of the replies topic."""
        self._reply_to = ReplyTo(self._topics.replies, reply_partition)

    def next_id(self) -> str:
        """An id for a request, unique among all gateways."""
        return f"{self._id_prefix}{next(self._numbers):x}"

    async def infer(self, model: ModelAnnouncement, request: InferenceRequest, call: Call) -> Outcome | Accepted:
        """Run a request that was checked against its model.

        Raises InferenceError: OVERLOADED without a permit, UNAVAILABLE while closed or when Kafka or the object store
        does not take the request in time; then it may still run, its answer is dropped. A cancelled caller's request
        goes on, its answer is kept.
        """
        if self._reply_to is None:
            raise InferenceError(ErrorCode.UNAVAILABLE, "this gateway takes no requests now", remedy="try again")
        if self._in_flight >= self._max_in_flight:
            raise InferenceError(
                ErrorCode.OVERLOADED,
                f"{self._in_flight} requests are in flight, as many as this gateway takes",
                remedy="try again later, or submit with the header Prefer: respond-async",
            )
        self._in_flight += 1
        self._idle.clear()
        try:
            if call.detached:
                return await self._submit(model, request, call)
            return await self._ask(model, request, call, self._reply_to)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def answer(self, id_: bytes, record: Record) -> bool:
        """Give a reply to the request that waits for it; False when none does."""
        waiter = self._waiters.pop(id_, None)
        if waiter is None or waiter.future.done():
            return False
        waiter.future.set_result(record)
        return True

    async def drain(self, *, grace_s: float, hurry: asyncio.Event) -> None:
        """Admit nothing more; wait for answers as long as `grace_s` or until `hurry`, then give the rest job ids."""
        self._reply_to = None
        idle = asyncio.ensure_future(self._idle.wait())
        hurried = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait((idle, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurried.cancel()
        for waiter in list(self._waiters.values()):
            waiter.give_up_s = 0.0
            waiter.look()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def _ask(
        self, model: ModelAnnouncement, request: InferenceRequest, call: Call, reply_to: ReplyTo
    ) -> Outcome | Accepted:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        waiter = _Waiter(loop.create_future(), now_s + call.wait_ms / 1000, now_s + REQUEST_TIMEOUT_S)
        key = call.id.encode()
        self._waiters[key] = waiter
        try:
            handed = waiter.handed = await self._produce(model, request, call, reply_to, waiter.note_end)
            waiter.timer = loop.call_at(min(waiter.give_up_s, waiter.deadline_s), waiter.look)
            record = await waiter.future
        finally:
            self._waiters.pop(key, None)
            if waiter.timer is not None:
                waiter.timer.cancel()
        if record is not None:
            return await self._outcomes.of_record(record)
        return self._accepted(model, handed, kept=True)

    async def _submit(self, model: ModelAnnouncement, request: InferenceRequest, call: Call) -> Accepted:
        ended = asyncio.Event()
        handed = await self._produce(model, request, call, None, lambda _: ended.set())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await ended.wait()
        except TimeoutError as cause:  # the record may be on its way
            raise _not_acknowledged() from cause
        if handed.error is not None:
            raise _not_taken(handed.error) from handed.error
        return self._accepted(model, handed, kept=False)

    async def _produce(
        self,
        model: ModelAnnouncement,
        request: InferenceRequest,
        call: Call,
        reply_to: ReplyTo | None,
        on_end: Callable[[Handed], None],
    ) -> Handed:
        value, header_length = encode_request(request)
        claim = ""
        if len(value) > self._claim_above_bytes:
            claim = f"claims/{call.id}"
            await self._outcomes.put_claim(claim, value)
            value = b""
        outbox = self._broker.outbox(model.topic)
        if outbox is None:
            try:
                outbox = await self._broker.open_outbox(model.topic)
            except BrokerError as cause:
                raise _not_taken(cause) from cause
        traceparent = call.traceparent
        if self._tracing is not None:
            traceparent, on_end = self._tracing.sending(model.topic, traceparent, on_end)
        envelope = Envelope(
            call.id,
            self._source,
            reply_to,
            call.deadline,
            call.model_version,
            call.priority,
            1,
            traceparent,
            claim,
            call.detached,
            call.start_by,
            call.execution_timeout_ms,
            call.caller.tenant,
            call.webhook,
        )
        headers = request_headers(envelope, header_length, now_ms=time.time_ns() // 1_000_000)
        handed = Handed(value, headers, on_end)
        outbox.put(handed)
        return handed

    def _accepted(self, model: ModelAnnouncement, handed: Handed, *, kept: bool) -> Accepted:
        partition, offset, appended_ms = handed.place()
        job = Job(self._topics.model_of(model.topic), model.epoch, partition, offset, appended_ms, kept)
        return Accepted(encode_job_id(job, key=self._job_key))


def _not_taken(cause: BaseException) -> InferenceError:
    error = InferenceError(
        ErrorCode.UNAVAILABLE, f"Kafka did not take the request: {cause!r}", remedy="try again in a moment"
    )
    error.__cause__ = cause
    return error


def _not_acknowledged() -> InferenceError:
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        f"Kafka did not acknowledge the request within {REQUEST_TIMEOUT_S:g} s; it may run nevertheless",
        remedy="try again in a moment",
    )
