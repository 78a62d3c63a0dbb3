"""Dispatcher: one request from admission to its answer, or to the job id under which the answer will be found.

No request hangs: it ends with its reply, with a job id once the broker has acknowledged it, or with UNAVAILABLE.
Knows no HTTP and no Kafka client.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

import msgspec
import structlog

from gateway.admission import Admission
from gateway.broker import Broker
from gateway.call import Call
from gateway.job_id import Job, encode_job_id
from gateway.kafka_client import REQUEST_TIMEOUT_S, BrokerError, Record
from gateway.outbox import Handed
from gateway.outcomes import Outcomes, request_key
from gateway.standing import Standing
from gateway.tracing import Tracing
from gateway.waiter import Waiter, away, not_acknowledged, not_taken, too_late
from gateway.waiting_list import WaitingList
from schemas.cancellation import Cancellation, cancellation_key, encode_cancellation
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import Outcome
from schemas.record import Envelope, Origin, ReplyTo, request_headers
from schemas.request import InferenceRequest
from schemas.topics import Topics
from schemas.v2 import encode_request

_log = structlog.get_logger(__name__)

_MAX_FORSAKEN = 4096
_SAME_MOMENT_MS = 100  # a caller's deadline ends its call somewhat before or after it ends the request


class Accepted(msgspec.Struct, frozen=True):
    """The broker holds the request; its outcome will be found under `job_id`. `standing` for one that was accepted
    before: where it stands by now.
    """

    job_id: str
    standing: Standing | None = None


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
        self._tracing = Tracing.if_on()
        self._reply_to: ReplyTo | None = None
        self._waiters: dict[bytes, Waiter] = {}
        self._waiting = WaitingList()
        self._forsaken: dict[bytes, None] = {}  # whose answers nobody wants; in the order in which they came
        self._cancelling: set[asyncio.Task[None]] = set()
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
        whether it may still run, its answer is dropped then. A cancelled caller's request goes on, its answer is kept,
        unless the call ends with its caller.
        """
        reply_to = self._admit(model, call)
        try:
            if call.deadline is not None or call.start_by is not None:
                self._check_time(model.metadata.name, call)
            if call.detached:
                return await self._submit(model, request, call)
            return await self._ask(model, request, call, reply_to)
        finally:
            self._leave(model, call)

    async def submit_all(
        self, model: ModelAnnouncement, requests: Sequence[tuple[InferenceRequest, Call]]
    ) -> list[Accepted | InferenceError]:
        """Submit requests that came together and were checked, each by itself: what became of each, in their order.

        They count as one request in flight, but each of them to the tenant's rate, and their records leave together.
        Raises InferenceError as `infer` does before the first is taken.
        """
        if not requests:
            return []
        _, first = requests[0]
        self._admit(model, first, count=len(requests))
        try:
            ended = await asyncio.gather(
                *(self._submit(model, request, call) for request, call in requests), return_exceptions=True
            )
        finally:
            self._leave(model, first)
        for each in ended:
            if isinstance(each, BaseException) and not isinstance(each, InferenceError):
                raise each  # a fault of ours
        return [each for each in ended if isinstance(each, Accepted | InferenceError)]

    async def cancel(self, origin: Origin, epoch: int, reason: str) -> None:
        """Tell the workers that a request must not run any more, or that its result is of no use; durable then.

        Raises InferenceError(UNAVAILABLE).
        """
        key, value = cancellation_key(origin, epoch), Cancellation(time.time_ns() // 1_000_000, reason)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._broker.append(self._topics.control, key, encode_cancellation(value))
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"Kafka did not take the cancellation: {cause!r}; the request may run nevertheless",
                remedy="cancel again in a moment",
            ) from cause

    def answer(self, id_: bytes, record: Record) -> bool:
        """Give a reply to the request that waits for it; False when none does."""
        waiter = self._waiters.pop(id_, None)
        if waiter is None and id_ in self._forsaken:
            del self._forsaken[id_]
            return True
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

    def _admit(self, model: ModelAnnouncement, call: Call, *, count: int = 1) -> ReplyTo:
        """Take a permit, given back by `_leave`; where to answer. Raises InferenceError: OVERLOADED, UNAVAILABLE."""
        if self._reply_to is None:
            raise InferenceError(ErrorCode.UNAVAILABLE, "this gateway takes no requests now", remedy="try again")
        if self._broker.reachability.is_away:
            raise away()
        self._admission.enter(model.metadata.name, call.caller.tenant, now_s=time.monotonic(), count=count)
        self._idle.clear()
        return self._reply_to

    def _leave(self, model: ModelAnnouncement, call: Call) -> None:
        self._admission.leave(model.metadata.name, call.caller.tenant)
        if not self._admission.in_flight:
            self._idle.set()

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
        waiter = Waiter(loop.create_future(), now_s + call.wait_ms / 1000, now_s + REQUEST_TIMEOUT_S, self._waiting)
        key = call.id.encode()
        self._waiters[key] = waiter
        try:
            note_end: Callable[[Handed], None] = waiter.note_end
            if call.on_accepted is not None:
                note_end = self._telling(model, call, note_end)
            handed = waiter.handed = await self._produce(model, request, call, reply_to, note_end)
            self._waiting.add(waiter, min(waiter.give_up_s, waiter.deadline_s))
            record = await waiter.future
        except asyncio.CancelledError:
            if call.ends_with_caller and waiter.handed is not None:
                self._forsake(model, call, key, waiter.handed)
            raise
        finally:
            self._waiters.pop(key, None)
            self._waiting.discard(waiter)
        if record is not None:
            outcome = await self._outcomes.of_record(record)
            if self._tracing is not None:
                self._tracing.received("replies", call.traceparent, outcome)
            return outcome
        self._admission.queued.put(call.caller.tenant, model, handed.place())
        return self._accepted(model, handed, call, kept=not call.stored)

    def _forsake(self, model: ModelAnnouncement, call: Call, key: bytes, handed: Handed) -> None:
        """Drop the answer that will come, and have the request not run where its own deadline does not see to that."""
        self._forsaken[key] = None
        if len(self._forsaken) > _MAX_FORSAKEN:  # answers that never come must not be remembered for ever
            del self._forsaken[next(iter(self._forsaken))]
        if call.deadline is not None and call.deadline.at_ms <= time.time_ns() // 1_000_000 + _SAME_MOMENT_MS:
            return  # under overload this would be a second write for each

        def cancel(ended: Handed) -> None:
            if ended.error is None:
                partition, offset, _ = ended.place()
                origin = Origin(model.topic, partition, offset)
                task = asyncio.get_running_loop().create_task(self._cancel_untold(origin, model.epoch))
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)

        if handed.has_ended:
            cancel(handed)
        else:
            handed.on_end = cancel

    async def _cancel_untold(self, origin: Origin, epoch: int) -> None:
        try:
            await self.cancel(origin, epoch, "its caller has left")
        except InferenceError as error:  # it runs, then, for nobody
            _log.warning("cancel_untold", origin=str(origin), error=error.message)

    async def _submit(self, model: ModelAnnouncement, request: InferenceRequest, call: Call) -> Accepted:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note_end(handed: Handed) -> None:
            if handed.error is None:
                self._admission.queued.put(call.caller.tenant, model, handed.place())
            if not ended.done():
                ended.set_result(None)

        handed = await self._produce(model, request, call, None, note_end)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await ended
        except TimeoutError as cause:  # the record may be on its way
            raise not_acknowledged(handed) from cause
        if handed.error is not None:
            raise not_taken(handed.error, has_left=handed.has_left) from handed.error
        accepted = self._accepted(model, handed, call, kept=False)
        if call.on_accepted is not None:
            call.on_accepted(accepted.job_id)
        return accepted

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
            claim = request_key(call.id, time.time_ns() // 1_000_000)
            await self._outcomes.put_claim(claim, value)
            value = b""
        outbox = self._broker.outbox(model.topic)
        if outbox is None:
            try:
                outbox = await self._broker.open_outbox(model.topic)
            except BrokerError as cause:
                raise not_taken(cause, has_left=False) from cause
        if call.hand_over_by_s and asyncio.get_running_loop().time() > call.hand_over_by_s:
            raise too_late()
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
            call.detached or call.stored,
            call.start_by,
            call.execution_timeout_ms,
            call.caller.tenant,
            call.webhook,
        )
        headers = request_headers(envelope, header_length, now_ms=time.time_ns() // 1_000_000)
        handed = Handed(value, headers, on_end)
        outbox.put(handed)
        return handed

    def _telling(
        self, model: ModelAnnouncement, call: Call, note_end: Callable[[Handed], None]
    ) -> Callable[[Handed], None]:
        """`note_end` for one who wants to know the job id before the answer."""

        def note(handed: Handed) -> None:
            if handed.error is None and call.on_accepted is not None:
                call.on_accepted(self._accepted(model, handed, call, kept=not call.stored).job_id)
            note_end(handed)

        return note

    def _accepted(self, model: ModelAnnouncement, handed: Handed, call: Call, *, kept: bool) -> Accepted:
        partition, offset, appended_ms = handed.place()
        job = Job(self._topics.model_of(model.topic), model.epoch, partition, offset, appended_ms, kept)
        return Accepted(encode_job_id(job, key=self._job_key, tenant=call.caller.tenant))
