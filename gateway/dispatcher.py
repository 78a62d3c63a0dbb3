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

from gateway.admission import Admission
from gateway.broker import REQUEST_TIMEOUT_S, Broker, BrokerError, Record
from gateway.call import Call
from gateway.job_id import Job, encode_job_id
from gateway.outbox import Handed
from gateway.outcomes import Outcomes
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
            self.future.set_exception(_not_taken(handed.error, has_left=handed.has_left))
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
            self.future.set_exception(_not_acknowledged(self.handed))
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
        admission: Admission,
        claim_above_bytes: int,
    ) -> None:
        self._broker = broker
        self._outcomes = outcomes
        self._topics = topics
        self._source = f"/tidegate/gateway/{gateway_id}"
        self._id_prefix = f"{gateway_id}-"
        self._numbers = itertools.count(1)
        self._job_key = job_key
        self._admission = admission
        self._claim_above_bytes = claim_above_bytes
        self._reply_to: ReplyTo | None = None
        self._waiters: dict[bytes, _Waiter] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests admitted and not yet answered."""
        return self._admission.in_flight

    def open(self, *, reply_partition: int) -> None:
        """Admit requests from now on, answers to this partition of the replies topic."""
        self._reply_to = ReplyTo(self._topics.replies, reply_partition)

    def next_id(self) -> str:
        """An id for a request, unique among all gateways."""
        return f"{self._id_prefix}{next(self._numbers):x}"

    async def infer(self, model: ModelAnnouncement, request: InferenceRequest, call: Call) -> Outcome | Accepted:
        """Run a request that was checked against its model.

        Raises InferenceError: OVERLOADED without a permit or when its deadline cannot be met, UNAVAILABLE while closed,
        while Kafka is away, or when Kafka or the object store does not take the request in time; the message says
        whether it may still run, its answer is dropped then. A cancelled caller's request goes on, its answer is kept.
        """
        if self._reply_to is None:
            raise InferenceError(ErrorCode.UNAVAILABLE, "this gateway takes no requests now", remedy="try again")
        if self._broker.reachability.is_away:
            raise _away()
        admission, name, tenant = self._admission, model.metadata.name, call.caller.tenant
        admission.enter(name, tenant, now_s=time.monotonic())
        self._idle.clear()
        try:
            if call.deadline is not None or call.start_by is not None:
                self._check_time(name, call)
            if call.detached:
                return await self._submit(model, request, call)
            return await self._ask(model, request, call, self._reply_to)
        finally:
            admission.leave(name, tenant)
            if not admission.in_flight:
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

    def _check_time(self, model: str, call: Call) -> None:
        """Refuse early what would only expire in the queue. Whoever has a priority may overtake: nothing is certain."""
        clocks = [(clock, what) for clock, what in ((call.start_by, "timeout"), (call.deadline, "deadline")) if clock]
        if call.priority or not clocks:
            return
        clock, what = min(clocks)
        self._admission.check_time(model, clock.remaining_ms(time.time_ns() // 1_000_000), what)

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
        return self._accepted(model, handed, call, kept=True)

    async def _submit(self, model: ModelAnnouncement, request: InferenceRequest, call: Call) -> Accepted:
        ended = asyncio.Event()
        handed = await self._produce(model, request, call, None, lambda _: ended.set())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await ended.wait()
        except TimeoutError as cause:  # the record may be on its way
            raise _not_acknowledged(handed) from cause
        if handed.error is not None:
            raise _not_taken(handed.error, has_left=handed.has_left) from handed.error
        return self._accepted(model, handed, call, kept=False)

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
        envelope = Envelope(
            call.id,
            self._source,
            reply_to,
            call.deadline,
            call.model_version,
            call.priority,
            1,
            call.traceparent,
            claim,
            call.detached,
            call.start_by,
            call.execution_timeout_ms,
            call.caller.tenant,
            call.webhook,
        )
        headers = request_headers(envelope, header_length, now_ms=time.time_ns() // 1_000_000)
        outbox = self._broker.outbox(model.topic)
        if outbox is None:
            try:
                outbox = await self._broker.open_outbox(model.topic)
            except BrokerError as cause:
                raise _not_taken(cause) from cause
        handed = Handed(value, headers, on_end)
        outbox.put(handed)
        return handed

    def _accepted(self, model: ModelAnnouncement, handed: Handed, call: Call, *, kept: bool) -> Accepted:
        partition, offset, appended_ms = handed.place()
        job = Job(self._topics.model_of(model.topic), model.epoch, partition, offset, appended_ms, kept)
        return Accepted(encode_job_id(job, key=self._job_key, tenant=call.caller.tenant))


def _not_taken(cause: BaseException, *, has_left: bool = False) -> InferenceError:
    fate = "; it may run nevertheless" if has_left else ""  # an answer that got lost looks the same
    error = InferenceError(
        ErrorCode.UNAVAILABLE, f"Kafka did not take the request: {cause!r}{fate}", remedy="try again in a moment"
    )
    error.__cause__ = cause
    return error


def _not_acknowledged(handed: Handed | None) -> InferenceError:
    """The error after too long a wait. What has not left the gateway is taken back, so that it never runs."""
    never_runs = handed is not None and handed.withdraw()
    fate = "it was taken back and will not run" if never_runs else "it may run nevertheless"
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        f"Kafka did not acknowledge the request within {REQUEST_TIMEOUT_S:g} s; {fate}",
        remedy="try again in a moment",
    )


def _away() -> InferenceError:
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        "Kafka cannot be reached at present; the request was not accepted",
        remedy="try again in a moment",
    )
