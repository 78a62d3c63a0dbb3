"""Waiting for jobs: one read for all of a pool, store reads only for what is done, news of cancelling at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backlog import Backlog, PartitionBacklog, PoolBacklog
from gateway.job_events import Told
from gateway.job_id import Job
from gateway.job_watch import JobWatch
from gateway.standing import Standing
from gateway.standings import Standings
from schemas.cancellation import Cancellation, cancellation_key, encode_cancellation
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.outcome import JobState, Outcome
from schemas.progress import Progress
from schemas.record import Origin

TOPIC = "t.infer.m"
MODEL = ModelAnnouncement(ModelMetadata("m", ("1",), "echo", 0, (), ()), "pool", TOPIC, 7, 1)


class FakeBacklog:
    """A pool's progress, set by hand; counts who reads it."""

    def __init__(self) -> None:
        self.progress = Progress(0, 0)
        self.reads = 0
        self.was_read = asyncio.Event()

    async def of_pool(self, pool: str, *, may_be_old: bool = False) -> PoolBacklog:
        assert pool == "pool"
        self.reads += 1
        self.was_read.set()
        return {TOPIC: (PartitionBacklog(self.progress, 1000),)}

    async def another_read(self) -> None:
        """Wait until it has been read twice more: what was set before is known then."""
        for _ in range(2):
            self.was_read.clear()
            await self.was_read.wait()


class FakeStandings:
    """Standings that come from a dictionary of outcomes; counts the reads of it."""

    def __init__(self, backlog: FakeBacklog) -> None:
        self.backlog = backlog
        self.outcomes: dict[int, Outcome] = {}
        self.lost: set[int] = set()
        self.looked: list[int] = []

    def model(self, job: Job) -> ModelAnnouncement:
        return MODEL

    def origin(self, job: Job) -> Origin:
        return Origin(TOPIC, job.partition, job.offset)

    def unfinished(self, job: Job, model: Any, partitions: Sequence[PartitionBacklog]) -> Standing | None:
        progress = partitions[0].progress
        if progress.is_done(job.offset):
            return None
        if job.offset < progress.started:
            return Standing(job, JobState.RUNNING)
        return Standing(job, JobState.QUEUED, None, partitions[0].ahead_of(job.offset))

    async def find(self, job: Job) -> Standing:
        self.looked.append(job.offset)
        await asyncio.sleep(0)
        if job.offset in self.lost:
            raise InferenceError(ErrorCode.RESULT_EXPIRED, "gone")
        if outcome := self.outcomes.get(job.offset):
            return Standing(job, outcome.state, outcome)
        partitions = [PartitionBacklog(self.backlog.progress, 1000)]
        return self.unfinished(job, MODEL, partitions) or Standing(job, JobState.RUNNING)

    async def find_many(self, jobs: Sequence[Job]) -> list[Standing | InferenceError]:
        found: list[Standing | InferenceError] = []
        for job in jobs:
            try:
                found.append(await self.find(job))
            except InferenceError as error:
                found.append(error)
        return found


class Site:
    """A watch and what it watches."""

    def __init__(self, max_waiting: int = 10_000) -> None:
        self.backlog = FakeBacklog()
        self.standings = FakeStandings(self.backlog)
        self.watch = JobWatch(
            standings=cast(Standings, self.standings),
            backlog=cast(Backlog, self.backlog),
            interval_s=0.005,
            max_waiting=max_waiting,
        )

    def wait(self, offset: int, *, timeout_s: float = 20, started: bool = False) -> asyncio.Task[Standing]:
        return asyncio.ensure_future(self.watch.wait(job(offset), timeout_s=timeout_s, started=started))

    def end(self, offset: int, state: JobState = JobState.SUCCEEDED) -> None:
        self.standings.outcomes[offset] = Outcome("id", state, Origin(TOPIC, 0, offset), b"")


def job(offset: int) -> Job:
    return Job("m", 7, 0, offset, 1)


async def test_a_thousand_waiting_callers_cost_one_read_per_interval_and_one_look_each() -> None:
    site = Site()
    waits = [site.wait(offset) for offset in range(1000)]
    await site.backlog.another_read()
    assert len(site.standings.looked) == 1000  # once, before they waited
    before = site.backlog.reads
    await site.backlog.another_read()
    assert site.backlog.reads - before <= 3
    for offset in range(1000):
        site.end(offset)
    site.backlog.progress = Progress(400, 1000)
    ended = await asyncio.gather(*waits[:400])
    assert {each.state for each in ended} == {JobState.SUCCEEDED}
    assert sorted(site.standings.looked[1000:]) == list(range(400))  # nobody whose request is not done
    site.backlog.progress = Progress(1000, 1000)
    await asyncio.gather(*waits)
    assert site.watch.waiting == 0


async def test_nobody_waiting_costs_nothing() -> None:
    site = Site()
    site.end(0)
    site.backlog.progress = Progress(1, 1)
    await site.wait(0)
    reads = site.backlog.reads
    await asyncio.sleep(0.05)  # ten intervals: not for synchronisation
    assert site.backlog.reads <= reads + 1


async def test_the_start_is_waited_for_without_the_store() -> None:
    site = Site()
    wait = site.wait(5, started=True)
    await site.backlog.another_read()
    site.backlog.progress = Progress(0, 6)
    assert (await wait).state is JobState.RUNNING
    assert site.standings.looked == [5]


async def test_a_wait_that_runs_out_tells_where_the_job_stands_by_then() -> None:
    site = Site()
    wait = site.wait(5, timeout_s=0.2)
    await site.backlog.another_read()
    site.backlog.progress = Progress(3, 3)
    standing = await wait
    assert (standing.state, standing.position) == (JobState.QUEUED, 2)
    assert site.standings.looked == [5]


async def test_an_answer_that_follows_its_acknowledgement_is_looked_for_until_it_is_there() -> None:
    site = Site()
    wait = site.wait(0)  # a wait that ran out: a gateway stores the outcome after the worker's acknowledgement
    site.backlog.progress = Progress(1, 1)
    await site.backlog.another_read()
    assert not wait.done()
    site.end(0)
    assert (await wait).state is JobState.SUCCEEDED


async def test_cancelling_is_news_although_the_request_is_not_done() -> None:
    site = Site()
    wait, other = site.wait(3), site.wait(4)
    await site.backlog.another_read()
    site.end(3, JobState.CANCELLED)
    value = encode_cancellation(Cancellation(1))
    site.watch.apply(b"model/m", value)
    site.watch.apply(cancellation_key(Origin(TOPIC, 0, 3), 8), value)  # of another life of the topic
    site.watch.apply(cancellation_key(Origin(TOPIC, 0, 3), 7), value)
    assert (await wait).state is JobState.CANCELLED
    assert not other.done()
    site.watch.stop()
    await other


async def test_a_stopping_gateway_lets_all_go() -> None:
    site = Site()
    waits = [site.wait(offset) for offset in range(3)]
    await site.backlog.another_read()
    site.watch.stop()
    assert [each.state for each in await asyncio.gather(*waits)] == [JobState.QUEUED] * 3
    assert (await site.wait(9)).state is JobState.QUEUED  # and keeps nobody any more


async def test_no_more_wait_than_may() -> None:
    site = Site(max_waiting=2)
    waits = [site.wait(offset) for offset in range(2)]
    await site.backlog.another_read()
    with pytest.raises(InferenceError) as raised:
        await site.wait(2)
    assert raised.value.code is ErrorCode.OVERLOADED
    assert (await site.watch.wait(job(2), timeout_s=0)).state is JobState.QUEUED  # asking is free
    site.watch.stop()
    await asyncio.gather(*waits)
    assert site.watch.waiting == 0


async def test_a_caller_who_leaves_is_forgotten() -> None:
    site = Site()
    wait = site.wait(0)
    await site.backlog.another_read()
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert site.watch.waiting == 0
    assert not site.watch._by_place


async def test_of_many_jobs_the_first_that_ends_ends_the_wait() -> None:
    site = Site()
    many = asyncio.ensure_future(site.watch.wait_any([job(0), job(1), job(2)], timeout_s=20))
    await site.backlog.another_read()
    site.end(1)
    site.backlog.progress = Progress(0, 2, ((1, 2),))
    states = [each.state for each in await many if isinstance(each, Standing)]
    assert states == [JobState.RUNNING, JobState.SUCCEEDED, JobState.QUEUED]


async def test_of_many_jobs_one_that_is_gone_is_news() -> None:
    site = Site()
    site.standings.lost.add(1)
    found = await site.watch.wait_any([job(0), job(1)], timeout_s=20)
    assert isinstance(found[1], InferenceError)
    assert await site.watch.wait_any([], timeout_s=20) == []


# --- events: what a caller is told depends on the standing and the last id alone


def ended(*, ran: bool = True) -> Standing:
    outcome = Outcome("i", JobState.SUCCEEDED, Origin(TOPIC, 0, 0), b"", started_ms=5 if ran else 0)
    return Standing(job(0), JobState.SUCCEEDED, outcome)


def queued(position: int) -> Standing:
    return Standing(job(0), JobState.QUEUED, None, position)


RUNNING = Standing(job(0), JobState.RUNNING)


def events(last_event_id: str, *standings: Standing) -> list[str]:
    told = Told(last_event_id)
    return [id_ for standing in standings for id_, _ in told.events(standing)]


@pytest.mark.parametrize(
    ("last", "standings", "wanted"),
    [
        ("", [queued(3), queued(3), queued(1), RUNNING, ended()], ["position-3", "position-1", "started", "finished"]),
        ("", [ended()], ["started", "finished"]),
        ("", [ended(ran=False)], ["finished"]),  # cancelled or expired in the queue
        ("position-3", [queued(3), queued(2)], ["position-2"]),
        ("position-3", [queued(5)], []),  # another replica, that has read earlier
        ("position-3", [ended()], ["started", "finished"]),
        ("started", [RUNNING, ended()], ["finished"]),
        ("started", [queued(2), ended()], ["finished"]),
        ("finished", [ended()], []),
        ("nonsense", [queued(0)], ["position-0"]),
        ("position-", [queued(0)], ["position-0"]),
        ("position-" + "9" * 30, [queued(0)], ["position-0"]),
    ],
)
def test_events_go_on_where_the_caller_stopped(last: str, standings: list[Standing], wanted: list[str]) -> None:
    assert events(last, *standings) == wanted


lives = st.lists(st.integers(0, 20), max_size=8).map(
    lambda positions: [*map(queued, sorted(positions, reverse=True)), RUNNING, ended()]
)


@given(lives, st.data())
def test_a_stream_broken_anywhere_tells_each_event_once(life: list[Standing], data: st.DataObject) -> None:
    whole = events("", *life)
    cut = data.draw(st.integers(0, len(life)))
    before = events("", *life[:cut])
    after = events(before[-1] if before else "", *life[cut:])
    assert before + after == whole
    assert len(set(whole)) == len(whole)
    assert whole[-2:] == ["started", "finished"]
