"""Outcomes: recorded ends of requests, from reply records and in the object store.

Keeping is stubborn: while the store is away it tries again, for what was accepted is not lost. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import msgspec
import structlog

from gateway.catalogue import Catalogue
from gateway.kafka_client import Record
from gateway.metrics import Metrics
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome, decode_outcome_record, decode_stored, encode_stored, outcome_key
from schemas.record import Origin
from store.object_store import ObjectNotFound, ObjectStore, StoreError

_log = structlog.get_logger(__name__)

_FIRST_RETRY_S = 0.2
_LAST_RETRY_S = 5.0
_WRITERS = 16
_LARGE_READS = 8  # values that are too large for a record, read at a time
_READ_AT_A_TIME = 64  # outcomes that one thread reads in one go
# What is being kept at a time: while the store is away it must not become more and more.
_MAX_KEEPING = 10_000
_MAX_KEEPING_BYTES = 64 * 1024 * 1024


class Outcomes:
    """Reads and keeps outcomes. All store access happens in threads."""

    def __init__(self, *, store: ObjectStore, catalogue: Catalogue, metrics: Metrics) -> None:
        self._store = store
        self._catalogue = catalogue
        self._metrics = metrics
        self._writers = asyncio.Semaphore(_WRITERS)
        self._large_reads = asyncio.Semaphore(_LARGE_READS)
        self._keeping: set[asyncio.Task[None]] = set()
        self._keeping_bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def of_record(self, record: Record) -> Outcome:
        """The outcome in a reply record, its value fetched where the record only claims it.

        Raises InferenceError: UNDECODABLE_RECORD, or UNAVAILABLE when the store does not give the value.
        """
        return await self.with_value(decode_outcome_record(record.headers, record.value))

    async def with_value(self, outcome: Outcome) -> Outcome:
        """An outcome, its value fetched where it is only claimed. Raises InferenceError(UNAVAILABLE)."""
        if not outcome.claim:
            return outcome
        return msgspec.structs.replace(outcome, value=await self._read(outcome.claim), claim="")

    async def load(self, origin: Origin, epoch: int) -> Outcome | None:
        """The stored outcome of a request, None if there is none. Raises InferenceError(UNAVAILABLE)."""
        try:
            return await asyncio.to_thread(self._load, origin, epoch)
        except StoreError as cause:
            raise _unavailable("read", cause) from cause

    async def load_many(self, places: Sequence[tuple[Origin, int]]) -> list[Outcome | None]:
        """The stored outcomes of the requests at these origins and epochs, in their order, those that succeeded without
        their values: together they could be of any size. Errors as `load`.
        """

        def load(places: Sequence[tuple[Origin, int]]) -> list[Outcome | None]:
            return [_without_result(self._load(origin, epoch)) for origin, epoch in places]

        parts = [places[first : first + _READ_AT_A_TIME] for first in range(0, len(places), _READ_AT_A_TIME)]
        try:
            return [each for part in parts for each in await asyncio.to_thread(load, part)]
        except StoreError as cause:
            raise _unavailable("read", cause) from cause

    def _load(self, origin: Origin, epoch: int) -> Outcome | None:
        try:
            return decode_stored(self._store.get(outcome_key(origin, epoch)))
        except ObjectNotFound:
            return None

    async def put(self, outcome: Outcome, epoch: int) -> bool:
        """Store an outcome now, unless there is one: then False. Raises InferenceError(UNAVAILABLE)."""
        key, data = outcome_key(outcome.origin, epoch), encode_stored(outcome)
        try:
            return await asyncio.to_thread(self._store.put, key, data, if_absent=True)
        except StoreError as cause:
            raise _unavailable("written", cause) from cause

    async def link(self, outcome: Outcome, *, above_bytes: int, expires_s: int, content_type: str) -> str | None:
        """A URL of an outcome's value as it is stored, when it is larger than `above_bytes`, stored by itself, and the
        store has URLs; else None. Raises InferenceError(UNAVAILABLE).
        """
        if not outcome.claim:
            return None

        def link(key: str) -> str | None:
            if self._store.head(key).size_bytes <= above_bytes:
                return None
            return self._store.presign(key, expires_s=expires_s, content_type=content_type)

        try:
            return await asyncio.to_thread(link, outcome.claim)
        except ObjectNotFound as cause:
            raise _gone(cause) from cause
        except StoreError as cause:
            raise _unavailable("read", cause) from cause

    async def put_claim(self, key: str, value: bytes) -> None:
        """Store a request's value that is too large for a record. Raises InferenceError(UNAVAILABLE)."""
        try:
            await asyncio.to_thread(self._store.put, key, value)
        except StoreError as cause:
            raise _unavailable("written", cause) from cause

    @property
    def has_room(self) -> bool:
        """Whether more may be kept. What is not is to be left in the replies topic, uncommitted, and read again."""
        return self._room.is_set()

    async def room(self) -> None:
        """Wait until more may be kept."""
        await self._room.wait()

    def keep_record(self, record: Record, *, on_kept: Callable[[], None] = lambda: None) -> None:
        """Store the outcome of a reply that nobody waits for, in the background; `on_kept` follows, come what may."""
        self._start(self._keep_record(record), on_kept, len(record.value or b""))

    def keep(self, outcome: Outcome) -> None:
        """Store an outcome that its caller did not take, in the background. Without room it is dropped: nobody was
        promised it, for that caller had left before there was a job id.
        """
        if not self.has_room:
            _log.warning(
                "drop_outcome", id=outcome.id, origin=str(outcome.origin), error="too much waits for the store"
            )
            return
        self._start(self._keep(outcome), lambda: None, len(outcome.value))

    async def settle(self) -> None:
        """Wait until all that is being kept is stored. Cancel-safe: what is underway goes on."""
        while self._keeping:
            await asyncio.wait(self._keeping)

    def stop(self) -> None:
        """Give up what is still being kept; it stays in the replies topic."""
        for task in self._keeping:
            task.cancel()

    def _start(self, keeping: Coroutine[None, None, None], on_kept: Callable[[], None], size_bytes: int) -> None:
        task = asyncio.get_running_loop().create_task(keeping)
        self._keeping.add(task)
        self._count_kept(size_bytes)

        def done(task: asyncio.Task[None]) -> None:
            self._keeping.discard(task)
            self._count_kept(-size_bytes)
            if task.cancelled():
                return
            if error := task.exception():
                _log.error("keep_outcome_failed", error=repr(error))
            on_kept()

        task.add_done_callback(done)

    def _count_kept(self, size_bytes: int) -> None:
        self._keeping_bytes += size_bytes
        if len(self._keeping) >= _MAX_KEEPING or self._keeping_bytes >= _MAX_KEEPING_BYTES:
            self._room.clear()
        elif 2 * len(self._keeping) <= _MAX_KEEPING and 2 * self._keeping_bytes <= _MAX_KEEPING_BYTES:
            self._room.set()  # not before half is done: those who wait come with many at a time

    async def _keep_record(self, record: Record) -> None:
        try:
            outcome = decode_outcome_record(record.headers, record.value)
        except InferenceError as error:
            self._metrics.replies_undecodable.inc()
            _log.error("drop_reply", offset=record.offset, error=error.message)
            return
        await self._keep(outcome)  # what it claims stays where it is

    async def _keep(self, outcome: Outcome) -> None:
        model = self._catalogue.of_topic(outcome.origin.topic)
        if model is None:
            _log.error("drop_outcome", id=outcome.id, origin=str(outcome.origin), error="no model has this topic")
            return
        key, data = outcome_key(outcome.origin, model.epoch), encode_stored(outcome)
        wait_s = _FIRST_RETRY_S
        while True:
            try:
                async with self._writers:
                    new = await asyncio.to_thread(self._store.put, key, data, if_absent=True)
            except StoreError as error:
                _log.warning("keep_outcome_again", id=outcome.id, error=repr(error), in_s=wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LAST_RETRY_S)
                continue
            if new:
                self._metrics.outcomes_kept.inc()
                _log.info("keep_outcome", id=outcome.id, origin=str(outcome.origin))
            return

    async def _read(self, key: str) -> bytes:
        try:
            async with self._large_reads:
                return await asyncio.to_thread(self._store.get, key)
        except ObjectNotFound as cause:
            raise _gone(cause) from cause
        except StoreError as cause:
            raise _unavailable("read", cause) from cause


def _without_result(outcome: Outcome | None) -> Outcome | None:
    if outcome is None or outcome.state is not JobState.SUCCEEDED:
        return outcome
    return msgspec.structs.replace(outcome, value=b"")


def _gone(cause: ObjectNotFound) -> InferenceError:
    return InferenceError(ErrorCode.RESULT_EXPIRED, f"the answer's payload is gone from the object store: {cause}")


def _unavailable(what: str, cause: StoreError) -> InferenceError:
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        f"the object store cannot be {what}: {cause}",
        remedy="try again in a moment",
    )


def request_key(id_: str, now_ms: int) -> str:
    """The object key of a request's value that is too large for a record. By the hour, so that what is too old can be
    removed without looking at each.
    """
    return f"claims/requests/{now_ms // 3_600_000:08d}/{id_}"
