"""The command `replay`: requests that became dead letters are sent again, under their ids.

Two passes over each topic of dead letters: the first finds what is meant and what was sent before, the second sends.
Notes of what was sent are appended after it is durable: a kill between the two repeats a chunk, and loses nothing. No
transaction: one that a killed replay left open would hold up the workers' partitions. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.topics import Topics
from workers.dead_letter import DeadLetter, read_dead_letter, read_replayed_note, replayed_note, replayed_request
from workers.delivery import Delivery, Exhausted
from workers.publisher import Publication, Publisher
from workers.range_intake import RangeIntake
from workers.replayed import Found, Place, Replayed, grouped, tell
from workers.selection import Selection, kind_of, select
from workers.settings import ReplaySettings
from workers.topics import TopicAdmin

_CHUNK_LETTERS = 100  # as many may be sent twice after a kill
_CHUNK_BYTES = 8 * 1024 * 1024
_MAX_RECORD_BYTES = 1_000_000  # of value and headers: what the broker takes by default, less its own overhead
_DURABLE_S = 60.0  # how long the broker may take for a chunk


class Replaying:
    """One run of `replay`. `stop` may be called from a signal handler: the chunk under way is finished."""

    def __init__(
        self,
        settings: ReplaySettings,
        selection: Selection,
        *,
        on_chosen: Callable[[int], None],
        on_sent: Callable[[int], None],
    ) -> None:
        """`on_chosen` is told how many letters will be sent, `on_sent` how many a chunk held."""
        self._settings = settings
        self._selection = selection
        self._topics = Topics(settings.prefix)
        self._on_chosen = on_chosen
        self._on_sent = on_sent
        self._stopping = False
        self._replayed = Replayed()

    def stop(self) -> None:
        """Finish with the chunk under way. Idempotent."""
        self._stopping = True

    async def run(self) -> Replayed:
        """Find and, unless it is a dry run, send.

        Raises InferenceError: INVALID_REQUEST for a model without dead letters, UNAVAILABLE when Kafka does not answer;
        then up to a chunk was sent and not noted. Cancelled, likewise.
        """
        begun_s = time.monotonic()
        partitions = await self._models()
        chosen = await self._choose(partitions)
        self._on_chosen(len(chosen))
        if chosen and not self._settings.dry_run:
            async with self._publishing() as publisher:
                for model, count in partitions.items():
                    places = {(number, offset) for of, number, offset in chosen if of == model}
                    if places:
                        await self._send(model, places, count, publisher)
        self._replayed.interrupted = self._stopping
        self._replayed.duration_s = time.monotonic() - begun_s
        return self._replayed

    async def _models(self) -> dict[str, int]:
        """The models that are meant, with how many partitions their request topic has."""
        admin = TopicAdmin(
            kafka=self._settings.kafka_connection(), topics=self._topics, partitions=1, replication_factor=1
        )
        there_are = await asyncio.to_thread(admin.dead_letter_models)
        for model in self._settings.model:
            if not there_are.get(model):
                what = "request topic" if model in there_are else "topic of dead letters"
                raise invalid(
                    f"there is no {what} of a model {model!r} below prefix {self._topics.prefix!r}",
                    field="model",
                    value=model,
                    remedy=f"use one of {', '.join(sorted(name for name, count in there_are.items() if count))}",
                )
        return {model: count for model, count in there_are.items() if model in (self._settings.model or there_are)}

    async def _choose(self, partitions: dict[str, int]) -> list[Place]:
        """The first pass: what is to be sent, those that failed first first."""
        chosen: list[Found] = []
        for model, count in partitions.items():
            of_model = self._unsent(*await self._scan(model))
            if count:
                chosen += of_model
            else:
                self._replayed.without_topic += len(of_model)
        chosen.sort(key=lambda letter: letter.time_ms)
        if self._settings.limit:
            self._replayed.beyond_limit = max(0, len(chosen) - self._settings.limit)
            del chosen[self._settings.limit :]
        self._replayed.groups = grouped(chosen)
        self._replayed.chosen = len(chosen)
        return [letter.place for letter in chosen]

    async def _scan(self, model: str) -> tuple[list[Found], set[Place]]:
        """All letters of a model, and the places of those that were sent before."""
        found: list[Found] = []
        noted: set[Place] = set()
        async with aclosing(self._letters(model)) as letters:
            async for delivery in letters:
                number = delivery.partition.number
                offsets = read_replayed_note(delivery.headers)
                if offsets is not None:
                    noted.update((model, number, offset) for offset in offsets)
                    continue
                try:
                    letter = _read(delivery)
                except InferenceError:
                    self._replayed.unreadable += 1
                    continue
                found.append(
                    Found(
                        (model, number, delivery.offset),
                        (letter.origin, letter.arrived_ms),
                        kind_of(letter),
                        letter.message,
                        letter.attempts,
                        letter.time_ms,
                        self._selection.takes(letter),
                    )
                )
        return found, noted

    def _unsent(self, found: list[Found], noted: set[Place]) -> list[Found]:
        """What is meant and was not sent. A worker that was killed may have left two letters of one request."""
        again = self._settings.again
        seen = set() if again else {letter.request for letter in found if letter.place in noted}
        unsent: list[Found] = []
        for letter in found:
            if not letter.is_meant:
                continue
            if letter.place in noted and not again:
                self._replayed.sent_before += 1
            elif letter.request in seen:
                self._replayed.repeats += 1
            else:
                seen.add(letter.request)
                unsent.append(letter)
        return unsent

    async def _send(self, model: str, places: set[tuple[int, int]], partitions: int, publisher: Publisher) -> None:
        """The second pass over one model's letters: those at `places` (partition and offset) are sent."""
        chunk: list[tuple[Delivery, Publication]] = []
        size_bytes = 0
        async with aclosing(self._letters(model)) as letters:
            async for delivery in letters:
                if (delivery.partition.number, delivery.offset) not in places:
                    continue
                places.discard((delivery.partition.number, delivery.offset))
                publication = self._request_again(model, _read(delivery), partitions)
                record_bytes = _size_bytes(publication)
                if record_bytes > _MAX_RECORD_BYTES:
                    self._replayed.too_large += 1
                    continue
                chunk.append((delivery, publication))
                size_bytes += record_bytes
                if len(chunk) >= _CHUNK_LETTERS or size_bytes >= _CHUNK_BYTES:
                    await self._send_chunk(model, chunk, publisher)
                    chunk, size_bytes = [], 0
                if not places:
                    break
        if not self._stopping:
            await self._send_chunk(model, chunk, publisher)
            self._replayed.vanished += len(places)

    async def _send_chunk(self, model: str, chunk: list[tuple[Delivery, Publication]], publisher: Publisher) -> None:
        """Send, and when that is durable note that it was."""
        offsets: dict[int, list[int]] = defaultdict(list)
        for delivery, publication in chunk:
            offsets[delivery.partition.number].append(delivery.offset)
            publisher.publish(publication)
        await _durable(publisher)
        topic = self._topics.dead(model)
        for number, of_partition in offsets.items():
            publisher.publish(Publication(topic, number, None, replayed_note(of_partition), _nobody_waits))
        await _durable(publisher)
        self._replayed.sent += len(chunk)
        self._on_sent(len(chunk))

    def _request_again(self, model: str, letter: DeadLetter, partitions: int) -> Publication:
        value, headers = replayed_request(letter, any_version=self._settings.any_version)
        number = letter.origin.partition % partitions
        return Publication(self._topics.infer(model), number, value, headers, _nobody_waits)

    async def _letters(self, model: str) -> AsyncGenerator[Delivery, None]:
        """Every record of the model's topic of dead letters up to its end now, or until stopped."""
        intake = RangeIntake(
            kafka=self._settings.kafka_connection(),
            group=f"{self._topics.prefix}.replay",  # it never commits: each pass begins at the first letter
            topic=self._topics.dead(model),
            left_out=(),
        )
        try:
            await intake.open()
            while True:
                for delivery in await intake.fetch():
                    if self._stopping:
                        return
                    yield delivery
        except Exhausted:
            return
        finally:
            await intake.close()

    @asynccontextmanager
    async def _publishing(self) -> AsyncIterator[Publisher]:
        async with asyncio.TaskGroup() as tasks:
            publisher = Publisher(kafka=self._settings.kafka_connection(), tasks=tasks)
            try:
                await publisher.open()
                yield publisher
            finally:
                await publisher.close()


def replay(settings: ReplaySettings) -> int:
    """Run the command; the process's exit code: 0 all sent, 1 something not, 2 a wrong selection, 130 interrupted."""
    return uvloop.run(_replay(settings))


async def _replay(settings: ReplaySettings) -> int:
    console = Console(stderr=True)
    replayed: Replayed | None = None
    status = 130
    try:
        selection = select(
            codes=settings.code,
            stages=settings.stage,
            cause=settings.cause,
            since=settings.since,
            until=settings.until,
            now_ms=time.time_ns() // 1_000_000,
        )
        replayed = await _run(settings, selection, console)
    except* InferenceError as errors:
        for error in _leaves(errors):
            console.print(f"{error.message}\n{error.remedy}".strip(), markup=False, highlight=False)
            status = 2 if error.code is ErrorCode.INVALID_REQUEST else 1
    except* asyncio.CancelledError:
        console.print(f"interrupted: up to {_CHUNK_LETTERS} requests may be sent again by the next replay")
    if replayed is None:
        return status
    tell(replayed, dry_run=settings.dry_run)
    if replayed.interrupted:
        console.print("interrupted: run the command again to go on")
        return 130
    return 0 if settings.dry_run or replayed.is_complete else 1


async def _run(settings: ReplaySettings, selection: Selection, console: Console) -> Replayed:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not (settings.progress and console.is_terminal) or settings.dry_run,
    ) as bar:
        task = bar.add_task("replaying", total=None)
        replaying = Replaying(
            settings,
            selection,
            on_chosen=lambda count: bar.update(task, total=count),
            on_sent=lambda count: bar.update(task, advance=count),
        )
        main = asyncio.current_task()
        assert main is not None
        signals = 0

        def interrupt() -> None:
            nonlocal signals
            signals += 1
            if signals == 1:
                replaying.stop()
            else:
                main.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)
        return await replaying.run()


def _read(delivery: Delivery) -> DeadLetter:
    return read_dead_letter(delivery.headers, delivery.value, delivery.origin)


def _size_bytes(publication: Publication) -> int:
    headers = sum(len(name) + len(content or b"") + 16 for name, content in publication.headers)
    return len(publication.value or b"") + headers


async def _durable(publisher: Publisher) -> None:
    try:
        async with asyncio.timeout(_DURABLE_S):
            await publisher.flush()
    except TimeoutError as cause:
        raise InferenceError(
            ErrorCode.UNAVAILABLE,
            f"the broker has not taken what was sent within {_DURABLE_S:g} s",
            remedy="run the replay again; what was sent last may be sent twice",
        ) from cause


def _leaves(errors: BaseExceptionGroup[InferenceError]) -> list[InferenceError]:
    found: list[InferenceError] = []
    for error in errors.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _nobody_waits() -> None:
    pass
