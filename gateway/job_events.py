"""JobEvents: a job's life as server-sent events: position, started, finished.

An event's id is what it tells (`position-17`, `started`, `finished`), so any replica knows from the job's standing
alone what a caller has missed since its Last-Event-ID. Knows no store and no Kafka client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import msgspec
import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from gateway.job_id import Job
from gateway.job_watch import JobWatch, Watched
from gateway.problem import problem_of
from gateway.standing import Standing, document_of
from gateway.standings import Standings
from schemas.errors import InferenceError
from schemas.outcome import JobState

_log = structlog.get_logger(__name__)

EVENT_STREAM = "text/event-stream"
_STARTED, _FINISHED = "started", "finished"
_POSITION = re.compile(r"position-([0-9]{1,18})")
_RECONNECT_MS = 1000
_SEND_TIMEOUT_S = 30.0  # for a caller who does not read
_LONGEST_S = 3600.0  # of one stream; the caller connects again, perhaps to another replica


class Told:
    """What a caller has been told of a job. Pure; `events` gives what is new, each event once and in order."""

    def __init__(self, last_event_id: str) -> None:
        """`last_event_id` is where a caller goes on; what is no id of ours begins at the beginning."""
        self.position: int | None = None
        self.started = last_event_id in (_STARTED, _FINISHED)
        self.finished = last_event_id == _FINISHED
        if match := _POSITION.fullmatch(last_event_id):
            self.position = int(match[1])

    def events(self, standing: Standing) -> Iterator[tuple[str, str]]:
        """(id, name) of each event that is new. A position that grew, as another replica read it earlier, is none."""
        position, outcome = standing.position, standing.outcome
        if position is not None and not self.started and (self.position is None or position < self.position):
            self.position = position
            yield f"position-{position}", "position"
        ran = standing.state is JobState.RUNNING if outcome is None else outcome.started_ms > 0
        if ran and not self.started:
            self.started = True
            yield _STARTED, _STARTED
        if outcome is not None and not self.finished:
            self.finished = True
            yield _FINISHED, _FINISHED


class JobEvents:
    """Streams of events, each a caller who waits for one job."""

    def __init__(self, *, standings: Standings, watch: JobWatch, ping_s: float) -> None:
        """A comment is sent after `ping_s` without an event, so that nobody between takes the connection for dead."""
        self._standings = standings
        self._watch = watch
        self._ping_s = ping_s

    async def stream(self, id_: str, job: Job, last_event_id: str) -> Response:
        """The response that tells of a job until it has ended; 204, which ends a browser's retries, when the caller has
        been told of its end. Raises InferenceError, before the stream begins, as `JobWatch.wait`.
        """
        if last_event_id == _FINISHED:
            await self._standings.find(job)
            return Response(None, 204)
        async with AsyncExitStack() as stack:
            watched = stack.enter_context(self._watch.watching([job], positions=True))
            standing = await self._standings.find(job)
            events = self._events(id_, watched, standing, Told(last_event_id), stack.pop_all())
        return EventSourceResponse(events, ping=self._ping_s, send_timeout=_SEND_TIMEOUT_S, sep="\n")

    async def _events(
        self, id_: str, watched: Watched, standing: Standing, told: Told, stack: AsyncExitStack
    ) -> AsyncIterator[ServerSentEvent]:
        until_s = asyncio.get_running_loop().time() + _LONGEST_S
        async with stack:  # the watching ends with the stream
            while True:
                document = document_of(id_, standing)
                for event_id, name in told.events(standing):
                    data = msgspec.json.encode(document).decode()
                    yield ServerSentEvent(data, event=name, id=event_id, retry=_RECONNECT_MS)
                if told.finished or not (due := await self._watch.news(watched, until_s)):
                    return
                try:
                    standing = await self._watch.standing(watched, 0, stored=due[0])
                except InferenceError as error:  # as an event: the status has been sent long ago
                    yield ServerSentEvent(msgspec.json.encode(problem_of(error)).decode(), event="error")
                    return
