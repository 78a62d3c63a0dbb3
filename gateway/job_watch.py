"""JobWatch: callers who wait for jobs, all of a pool by one read of its progress per interval, however many they are.

The object store is asked only about jobs whose request is done, and about one that somebody cancels. Knows no route and
no Kafka client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from gateway.backlog import Backlog, PartitionBacklog
from gateway.job_id import Job
from gateway.standing import Standing
from gateway.standings import Standings
from schemas.cancellation import decode_cancellation
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState
from schemas.record import Origin
from schemas.tensor import Buffer

_log = structlog.get_logger(__name__)

_BREATH = 512  # watched jobs between which others get their turn


class Watched:
    """The jobs that one caller waits for. `changed` is set when there is news of any."""

    __slots__ = ("changed", "due", "jobs", "positions", "seen")

    def __init__(self, jobs: Sequence[Job], *, positions: bool) -> None:
        self.jobs = jobs
        self.positions = positions  # whether every change of a position is news
        self.changed = asyncio.Event()
        self.due: dict[int, bool] = {}  # indices of those that have changed, and whether the store knows more
        self.seen: dict[int, tuple[ModelAnnouncement, tuple[PartitionBacklog, ...]]] = {}  # what was last read

    def tell(self, index: int, *, stored: bool) -> None:
        """There is news of this job. `stored`: an outcome of it may be in the store."""
        self.due[index] = stored or self.due.get(index, False)
        self.changed.set()


class _Entry:
    """One watched job, and what was last seen of it."""

    __slots__ = ("index", "job", "model", "position", "state", "watched")

    def __init__(self, watched: Watched, index: int, model: ModelAnnouncement) -> None:
        self.watched = watched
        self.index = index
        self.job = watched.jobs[index]
        self.model = model
        self.state: JobState | None = None
        self.position: int | None = None

    def look(self, partitions: tuple[PartitionBacklog, ...]) -> None:
        """Compare with what the pool has done by now, and tell of what is new."""
        if self.job.partition >= len(partitions):
            return
        self.watched.seen[self.index] = (self.model, partitions)
        partition = partitions[self.job.partition]
        if partition.progress.is_done(self.job.offset):  # told each time: the outcome may follow a moment later
            self.watched.tell(self.index, stored=True)
            return
        state, position = JobState.QUEUED, None
        if self.job.offset < partition.progress.started:
            state = JobState.RUNNING
        elif self.watched.positions:
            position = partition.ahead_of(self.job.offset)
        if (state, position) != (self.state, self.position):
            self.state, self.position = state, position
            self.watched.tell(self.index, stored=False)


class JobWatch:
    """Waits for jobs on behalf of callers; lives on the event loop."""

    def __init__(self, *, standings: Standings, backlog: Backlog, interval_s: float, max_waiting: int) -> None:
        """`max_waiting`: jobs that may be waited for at a time."""
        self._standings = standings
        self._backlog = backlog
        self._interval_s = interval_s
        self._max_waiting = max_waiting
        self._pools: dict[str, set[_Entry]] = {}
        self._by_place: dict[tuple[Origin, int], set[_Entry]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Jobs that are waited for now."""
        return self._waiting

    def apply(self, key: Buffer | None, value: Buffer | None) -> None:
        """Take one control record in: of a cancelled job there is news, although its request is not done."""
        if value is None or not self._by_place:
            return
        change = decode_cancellation(key, value)
        if change is not None:
            for entry in self._by_place.get(change[:2], ()):
                entry.watched.tell(entry.index, stored=True)

    def stop(self) -> None:
        """Let all who wait go, with what is known."""
        self._stopped = True
        for entries in self._pools.values():
            for entry in entries:
                entry.watched.changed.set()
        for task in self._tasks:
            task.cancel()

    async def wait(self, job: Job, *, timeout_s: float, started: bool = False) -> Standing:
        """Where a job stands once it has ended, or once it has `started`, or when the time is over.

        Raises InferenceError as `Standings.find`, and OVERLOADED when too many wait. Cancel-safe.
        """
        if timeout_s <= 0:
            return await self._standings.find(job)
        with self.watching([job]) as watched:
            standing = await self._standings.find(job)
            until_s = asyncio.get_running_loop().time() + timeout_s
            while standing.outcome is None and not (started and standing.state is JobState.RUNNING):
                due = await self.news(watched, until_s)
                if not due:
                    return self._seen(watched, 0) or standing
                standing = await self.standing(watched, 0, stored=due[0])
            return standing

    async def wait_any(self, jobs: Sequence[Job], *, timeout_s: float) -> list[Standing | InferenceError]:
        """Where jobs stand once one of them has ended, or when the time is over; in their order. Errors as `wait`."""
        if timeout_s <= 0 or not jobs:
            return await self._standings.find_many(jobs)
        with self.watching(jobs) as watched:
            found = await self._standings.find_many(jobs)
            until_s = asyncio.get_running_loop().time() + timeout_s
            while not any(_is_final(each) for each in found) and (due := await self.news(watched, until_s)):
                stored = [index for index, stored in due.items() if stored]
                looked = await self._standings.find_many([jobs[index] for index in stored])
                for index, standing in zip(stored, looked, strict=True):
                    found[index] = standing
            for index, standing in enumerate(found):
                if not _is_final(standing):
                    found[index] = self._seen(watched, index) or standing
            return found

    async def news(self, watched: Watched, until_s: float) -> dict[int, bool]:
        """Wait for news: the jobs that have changed, and whether the store may hold an outcome of each. Empty when the
        time is over (by the event loop's clock) or the gateway stops. Cancel-safe.
        """
        if not self._stopped:
            try:
                async with asyncio.timeout_at(until_s):
                    await watched.changed.wait()
            except TimeoutError:
                return {}
        watched.changed.clear()
        due, watched.due = watched.due, {}
        return {} if self._stopped else due

    async def standing(self, watched: Watched, index: int, *, stored: bool = True) -> Standing:
        """Where a job of which there was news stands. Raises InferenceError as `Standings.find`."""
        seen = None if stored else self._seen(watched, index)
        return seen or await self._standings.find(watched.jobs[index])

    def _seen(self, watched: Watched, index: int) -> Standing | None:
        """Where a job stands by what was last read; None when nothing was, or it is done."""
        if index not in watched.seen:
            return None
        return self._standings.unfinished(watched.jobs[index], *watched.seen[index])

    @contextmanager
    def watching(self, jobs: Sequence[Job], *, positions: bool = False) -> Iterator[Watched]:
        """Watch jobs for as long as the block lasts. Of those that nobody will hear of again there is no news.

        Raises InferenceError(OVERLOADED).
        """
        if self._waiting + len(jobs) > self._max_waiting:
            raise InferenceError(
                ErrorCode.OVERLOADED,
                f"{self._waiting} jobs are waited for, as many as this gateway takes",
                remedy="ask without a wait, and again later, or raise TIDEGATE_MAX_WAITING",
            )
        watched = Watched(jobs, positions=positions)
        entries: list[_Entry] = []
        self._waiting += len(jobs)
        try:
            for index, job in enumerate(jobs):
                try:
                    entries.append(_Entry(watched, index, self._standings.model(job)))
                except InferenceError:
                    continue  # finding it tells why
            for entry in entries:
                self._add(entry)
            yield watched
        finally:
            self._waiting -= len(jobs)
            for entry in entries:
                self._remove(entry)

    def _add(self, entry: _Entry) -> None:
        self._by_place.setdefault(self._place(entry.job), set()).add(entry)
        pool = entry.model.pool
        if pool not in self._pools:
            self._pools[pool] = set()
            task = asyncio.get_running_loop().create_task(self._follow(pool), name=f"watch jobs of {pool}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._pools[pool].add(entry)

    def _remove(self, entry: _Entry) -> None:
        place = self._place(entry.job)
        entries = self._by_place.get(place, set())
        entries.discard(entry)
        if not entries:
            self._by_place.pop(place, None)
        self._pools.get(entry.model.pool, set()).discard(entry)

    def _place(self, job: Job) -> tuple[Origin, int]:
        return self._standings.origin(job), job.epoch

    async def _follow(self, pool: str) -> None:
        """As long as jobs of a pool are watched: compare them with its progress, once per interval."""
        entries = self._pools[pool]
        failed = False
        try:
            while entries:
                await asyncio.sleep(self._interval_s)
                try:
                    backlog = await self._backlog.of_pool(pool)
                except InferenceError as error:  # those who wait have bounds of their own
                    if not failed:
                        _log.warning("watch_jobs_failed", pool=pool, error=error.message)
                    failed = True
                    continue
                failed = False
                for number, entry in enumerate(tuple(entries), 1):
                    entry.look(backlog.get(entry.model.topic, ()))
                    if not number % _BREATH:
                        await asyncio.sleep(0)
        finally:
            del self._pools[pool]


def _is_final(found: Standing | InferenceError) -> bool:
    return isinstance(found, InferenceError) or found.outcome is not None
