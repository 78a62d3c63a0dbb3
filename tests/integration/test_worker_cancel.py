"""Cancelled requests: what is queued never runs, what runs is masked out, and the control topic is left clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome, decode_stored, encode_stored, error_value
from schemas.progress import Progress
from schemas.record import Origin
from store import open_store
from tests.integration.control_client import ControlClient, latest
from tests.integration.topic_client import TopicClient, rows_request, values_of
from tests.integration.worker_process import Installation

pytestmark = pytest.mark.kafka


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


def done(offset: int) -> Progress:
    return Progress(offset, offset)


def is_cancelled(outcome: Outcome) -> bool:
    error = outcome.error()
    return outcome.state is JobState.CANCELLED and error is not None and error.code is ErrorCode.CANCELLED


async def test_what_is_queued_or_only_prepared_never_runs(site: Installation) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=2500)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        control = ControlClient(client)
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(4)])
        await client.committed("dev", Progress(0, 2))  # one runs, one is prepared, two are queued
        keys = await control.cancel(*(origin for _, origin in sent[1:3]), reason="the user left")
        outcomes = await (await client.results("dev")).answered(id_ for id_, _ in sent)
        await client.committed("dev", done(4))
        await control.removed(*keys)
        told = await control.model("dev", lambda model: model.success.count == 2)
        assert not (await (await client.dead("dev")).everything()).records
        assert not (repeated := [id_ for id_, told in (await client.results("dev")).outcomes.items() if len(told) > 1])
    assert not repeated
    first, prepared, queued, last = (outcomes[id_] for id_, _ in sent)
    for outcome in (prepared, queued):
        assert is_cancelled(outcome)
        assert "the user left" in str(outcome.error())
        assert (outcome.started_ms, outcome.finished_ms < first.finished_ms) == (0, True)
    assert (values_of(first), values_of(last)) == ([0], [3])
    assert (told.rows, told.batches, told.fail.count) == (2, 2, 2)  # nothing else has run


async def test_what_runs_is_answered_at_once_and_its_neighbours_as_usual(site: Installation) -> None:
    site.add_device("dev", max_batch_size=3, delay_us=60_000_000, execute_base_ms=2500)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        control = ControlClient(client)
        reply_to = await client.make_replies()
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(3)], reply_to=reply_to)
        await client.committed("dev", Progress(0, 3))
        keys = await control.cancel(sent[1][1])
        replies = await client.read(reply_to.topic)
        outcomes = await replies.answered(id_ for id_, _ in sent)
        await client.committed("dev", done(3))
        await control.removed(*keys)
        told = (await replies.everything()).told()
    first, cancelled, last = (outcomes[id_] for id_, _ in sent)
    assert is_cancelled(cancelled)
    assert cancelled.started_ms > 0
    assert cancelled.finished_ms < first.finished_ms - 500
    assert (values_of(first), values_of(last)) == ([0], [2])
    assert all(len(states) == 1 for states in told.values())


async def test_what_is_cancelled_while_no_worker_lives_never_runs_and_what_the_gateway_has_stored_stands(
    site: Installation,
) -> None:
    site.add_device("dev")
    store = open_store(str(site.store))
    async with client_of(site) as client:
        await client.provision("dev")
        control = ControlClient(client)
        sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(2)])
        job, place = await client.send(
            "dev", rows_request([2.0]), stored=True, tenant="acme", webhook="https://acme.test/hook"
        )
        ended = InferenceError(ErrorCode.CANCELLED, "cancelled by its owner")
        outcome = Outcome("", JobState.CANCELLED, place, error_value(ended), None, 0, 0, 77)
        key = await client.outcome_key(place)
        store.put(key, encode_stored(outcome), if_absent=True)
        keys = await control.cancel(sent[0][1], place)
        async with site.worker():
            outcomes = await (await client.results("dev")).answered([*(id_ for id_, _ in sent), job])
            await client.committed("dev", done(3))
            await control.removed(*keys)
            told = await control.model("dev", lambda model: model.success.count > 0)
    assert is_cancelled(outcomes[sent[0][0]])
    assert values_of(outcomes[sent[1][0]]) == [1]
    recorded = outcomes[job]
    assert "cancelled by its owner" in str(recorded.error())
    assert (recorded.state, recorded.finished_ms) == (JobState.CANCELLED, 77)
    assert (recorded.tenant, recorded.webhook) == ("acme", "https://acme.test/hook")
    assert decode_stored(store.get(key)).finished_ms == 77
    assert told.rows == 1


async def test_what_is_done_or_of_another_life_of_the_topic_is_not_touched_and_its_cancellation_removed(
    site: Installation,
) -> None:
    site.add_device("dev")
    async with client_of(site) as client:
        await client.provision("dev")
        control = ControlClient(client)
        id_, origin = await client.send("dev", rows_request([1.0]))
        stale = await control.cancel(origin, epoch=1)
        unknown = await control.cancel(Origin(client.topics.infer("nobody"), 0, 5), epoch=1)
        async with site.worker() as worker:
            await worker.ready()
            results = await client.results("dev")
            outcomes = await results.answered([id_])
            await client.committed("dev", done(1))
            late = await control.cancel(origin)
            await control.removed(*stale, *late)
            assert latest(await (await control.read()).everything(), unknown[0]) is not None
            assert not [each for each, told in (await results.everything()).outcomes.items() if len(told) > 1]
    assert values_of(outcomes[id_]) == [1]


async def test_a_worker_killed_while_cancellations_are_pending_leaves_them_to_the_next_owner(
    site: Installation,
) -> None:
    site.add_device("dev", max_batch_size=1, execute_base_ms=3000)
    async with client_of(site) as client:
        async with site.worker() as killed:
            await killed.ready()
            control = ControlClient(client)
            sent = await client.send_many("dev", [rows_request([float(n)]) for n in range(4)])
            await client.committed("dev", Progress(0, 2))
            keys = await control.cancel(*(origin for _, origin in sent[1:3]))
            killed.kill()
        async with site.worker() as heir:
            await heir.ready()
            results = await client.results("dev")
            outcomes = await results.answered(id_ for id_, _ in sent)
            await client.committed("dev", done(4))
            await control.removed(*keys)
            every = (await results.everything()).outcomes
    assert all(is_cancelled(outcome) for id_, _ in sent[1:3] for outcome in every[id_])
    assert [values_of(outcomes[sent[n][0]]) for n in (0, 3)] == [[0], [3]]
