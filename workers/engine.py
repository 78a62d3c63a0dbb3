"""Engine: takes records from an Intake, routes each to its model's lane, and sees that every one has an outcome.

Knows no Kafka client: records come through an Intake, outcomes leave through the Recorder. One slow or broken model
never holds up another: each has its own lane, and a lane that is full pauses only its own topic.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from schemas.record import Envelope, decode_envelope, decode_value
from store.object_store import KeyRefused, ObjectNotFound
from workers.answers import Answers
from workers.cancellations import Cancellations
from workers.delivery import Delivery, Exhausted, Intake
from workers.lane import Lane, now_us
from workers.model_cache import ModelCache
from workers.resident import ModelKey
from workers.served import ServedModel, ServedModels
from workers.statistics import Statistics
from workers.work import Recorder, Work

_CLAIMS_AT_ONCE = 4  # large values being fetched: each is in memory before it counts as queued
_MAX_CLAIMS = 256  # large values waiting for their turn


class QueueRoom(msgspec.Struct, frozen=True):
    """What of one model may wait in memory; beyond it its topic is paused."""

    max_requests: int
    max_bytes: int


class Engine:
    """The worker's middle: fetch loop and lanes."""

    def __init__(
        self,
        *,
        served: ServedModels,
        models: ModelCache,
        intake: Intake,
        recorder: Recorder,
        tasks: asyncio.TaskGroup,
        room: QueueRoom,
        cancelled: Cancellations | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        """`tasks` is the lifetime of work. `cancelled`: who must not run; `cancel` says that there are more of them.

        `fall_back`, which may be set, is asked once for a model version that does not load: true when the model is
        served in another version from then on.
        """
        self.fall_back: Callable[[ModelKey], Awaitable[bool]] | None = None
        self._fallen: set[ModelKey] = set()
        self._served = served
        self._models = models
        self._tasks = tasks
        self._room = room
        self._cancelled = cancelled if cancelled is not None else Cancellations()
        self._statistics = statistics if statistics is not None else Statistics()
        self._intake = intake
        self._recorder = recorder
        self._lanes: dict[str, dict[ModelKey, Lane]] = defaultdict(dict)  # by model
        self._paused: set[str] = set()
        self._claims = 0
        self._claims_done = asyncio.Event()
        self._claims_done.set()
        self._claim_turns = asyncio.Semaphore(_CLAIMS_AT_ONCE)
        self._resumed = asyncio.Event()

    async def run(self) -> None:
        """Fetch and route until cancelled or the intake is exhausted; what was fetched goes on either way."""
        while True:
            try:
                deliveries = await self._intake.fetch()
            except Exhausted:
                return
            received_us = now_us()
            touched: set[Lane] = set()
            for delivery in deliveries:
                delivery.partition.clock.observe(delivery.appended_ms, received_us)
                lane = self._accept(delivery, received_us)
                if lane is not None:
                    touched.add(lane)
            for lane in touched:
                lane.pump()
            await asyncio.sleep(0)  # lets answers out between two fetches that are both ready

    async def drain(self) -> None:
        """Run what is queued, record every outcome. Fetching has ended before. Cancel-safe."""
        await self._claims_done.wait()
        await asyncio.gather(*(lane.drain() for lanes in self._lanes.values() for lane in lanes.values()))
        await self._recorder.flush()

    def close(self) -> None:
        """Begin nothing any more; what runs comes to no account. Its records stay unacknowledged."""
        for lanes in self._lanes.values():
            for lane in lanes.values():
                lane.close()

    def cancel(self, topics: Iterable[str]) -> None:
        """Requests of these topics were cancelled: end those that are here. Who comes later is ended on arrival."""
        for topic in topics:
            if self._served.has_topic(topic):
                for lane in list(self._lanes[self._served.of_topic(topic).config.name].values()):
                    lane.cancel(self._cancelled)

    def _accept(self, delivery: Delivery, received_us: int) -> Lane | None:
        """Decode one record and queue it; a record that cannot be is answered here and now."""
        envelope = Envelope(str(delivery.origin))
        try:
            envelope, header_length = decode_envelope(delivery.headers, delivery.origin)
            if self._cancelled.count and self._is_cancelled(delivery, envelope):
                return None
            if envelope.claim:
                self._claims += 1
                self._claims_done.clear()
                self._bound(self._served.of_topic(delivery.partition.topic).config.name)
                self._tasks.create_task(self._accept_claimed(delivery, envelope, header_length), name="fetch claim")
                return None
            return self._queue(delivery, envelope, delivery.value, header_length, received_us)
        except InferenceError as error:
            self._fail(delivery, envelope, error)
            return None

    def _is_cancelled(self, delivery: Delivery, envelope: Envelope) -> bool:
        """Whether it is cancelled; then it is answered."""
        if not self._cancelled.has(delivery.origin):
            return False
        self._fail(delivery, envelope, self._cancelled.error(delivery.origin), stage="queue")
        return True

    def _fail(self, delivery: Delivery, envelope: Envelope, error: InferenceError, *, stage: str = "decode") -> None:
        """A request ends before it is known which version it is for; it counts for the default one."""
        metadata = self._served.of_topic(delivery.partition.topic).metadata
        arrived_us = delivery.partition.clock.arrival_us(delivery.appended_ms, now_us())
        self._statistics.of(ModelRef(metadata.name, metadata.versions[-1])).note_failure(now_us() - arrived_us)
        self._recorder.fail(delivery, envelope, error, stage=stage)

    async def _accept_claimed(self, delivery: Delivery, envelope: Envelope, header_length: int | None) -> None:
        model = self._served.of_topic(delivery.partition.topic).config.name
        try:
            async with self._claim_turns:
                while self._is_full(model):
                    self._resumed.clear()
                    await self._resumed.wait()
                value = await self._recorder.fetch_claim(envelope.claim)
            if self._cancelled.count and self._is_cancelled(delivery, envelope):
                return
            self._queue(delivery, envelope, value, header_length, now_us()).pump()
        except (ObjectNotFound, KeyRefused) as cause:
            error = InferenceError(
                ErrorCode.UNDECODABLE_RECORD,
                f"the value of the record at {delivery.origin} is not in the object store",
                field="tidegate-claim",
                value=envelope.claim,
            )
            error.__cause__ = cause
            self._fail(delivery, envelope, error)
        except InferenceError as error:
            self._fail(delivery, envelope, error)
        finally:
            self._claims -= 1
            if not self._claims:
                self._claims_done.set()
            self._bound(model)

    def _queue(
        self, delivery: Delivery, envelope: Envelope, value: bytes | None, header_length: int | None, received_us: int
    ) -> Lane:
        request = decode_value(value, header_length, delivery.origin)
        model = self._served.of_topic(delivery.partition.topic)
        version = model.metadata.resolve(envelope.model_version)
        rows = model.metadata.check(request)
        lane = self._lane(model, version)
        work = Work(delivery, envelope, request, len(value or b""))
        lane.offer(work, rows, received_us, is_timed=model.is_timed)
        return lane

    def _lane(self, model: ServedModel, version: str) -> Lane:
        key = model.key(version)
        lanes = self._lanes[key.ref.name]
        lane = lanes.get(key)
        if lane is None:
            lane = lanes[key] = Lane(
                key,
                model.config,
                models=self._models,
                answers=Answers(
                    key.ref,
                    self._recorder,
                    self._statistics.of(key.ref),
                    in_order=model.config.preserve_ordering,
                    batched=model.config.max_batch_size > 0,
                    labels=model.labels,
                ),
                intake=self._intake,
                tasks=self._tasks,
                on_change=lambda: self._bound(key.ref.name),
                on_failing=lambda: self._begin_fall_back(key),
            )
        return lane

    def _begin_fall_back(self, key: ModelKey) -> bool:
        if self.fall_back is None or key in self._fallen:
            return False
        self._fallen.add(key)
        self._tasks.create_task(self._fall_back(self.fall_back, key), name=f"fall back from {key}")
        return True

    async def _fall_back(self, fall_back: Callable[[ModelKey], Awaitable[bool]], key: ModelKey) -> None:
        lane = self._lanes[key.ref.name].get(key)
        if lane is not None and not await fall_back(key):
            lane.fail_waiting()

    def retire(self, model: str) -> None:
        """Let lanes of states that are not served any more finish what they have, and go."""
        served = [self._served.of_topic(topic).keys for topic in self._served.topics_of(model)]
        keys = frozenset[ModelKey]().union(*served)
        lanes = self._lanes[model]
        for key, lane in list(lanes.items()):
            if key not in keys:
                lane.retire(partial(lanes.pop, key))

    def _bound(self, model: str) -> None:
        """Pause the model's topic while too much of it waits here, and resume it at half."""
        fill = max(self._fill(model), self._claims / _MAX_CLAIMS)
        if fill >= 1:
            self._pause(model, True)
        elif fill <= 0.5:
            self._pause(model, False)
        if not self._is_full(model):
            self._resumed.set()

    def _is_full(self, model: str) -> bool:
        return self._fill(model) >= 1

    def _fill(self, model: str) -> float:
        lanes = self._lanes[model].values()
        return max(
            sum(lane.queued_requests for lane in lanes) / self._room.max_requests,
            sum(lane.queued_bytes for lane in lanes) / self._room.max_bytes,
        )

    def _pause(self, model: str, paused: bool) -> None:
        if (model in self._paused) == paused:
            return
        self._paused ^= {model}
        for topic in self._served.topics_of(model):
            (self._intake.pause if paused else self._intake.resume)(topic)
