"""Standings: finds where jobs stand by their ids alone: stored outcomes and committed offsets tell, there is no table.

Knows no route and no Kafka client.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.backlog import Backlog, PartitionBacklog
from gateway.caller import Caller
from gateway.catalogue import Catalogue
from gateway.job_id import Job, decode_job_id
from gateway.outcomes import Outcomes
from gateway.outlook import Outlook
from gateway.replies import RETENTION_MS
from gateway.standing import Standing
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError
from schemas.outcome import JobState, Outcome
from schemas.record import Origin
from schemas.topics import Topics


class Standings:
    """Looks jobs up."""

    def __init__(
        self,
        *,
        outcomes: Outcomes,
        catalogue: Catalogue,
        backlog: Backlog,
        topics: Topics,
        outlook: Outlook,
        job_key: bytes,
        retention_s: float,
    ) -> None:
        """`retention_s`: how long after its end a job's result is told."""
        self._outcomes = outcomes
        self._catalogue = catalogue
        self._backlog = backlog
        self._topics = topics
        self._outlook = outlook
        self._job_key = job_key
        self._retention_ms = int(retention_s * 1000)

    def job(self, id_: str, caller: Caller) -> Job:
        """The job of an id. Raises InferenceError: JOB_NOT_FOUND, also for another tenant's, or PERMISSION_DENIED."""
        job = self.job_of(id_, caller.tenant)
        caller.require("jobs", job.name)
        return job

    def job_of(self, id_: str, tenant: str) -> Job:
        """The job of an id that is a tenant's. Raises InferenceError(JOB_NOT_FOUND)."""
        return decode_job_id(id_, key=self._job_key, tenant=tenant)

    def origin(self, job: Job) -> Origin:
        """The place of a job's request."""
        return Origin(self._topics.infer(job.name), job.partition, job.offset)

    def model(self, job: Job) -> ModelAnnouncement:
        """The model of a job whose topic is still there. Raises InferenceError: RESULT_EXPIRED, or as the catalogue."""
        model = self._catalogue.model(job.name)
        if model.epoch != job.epoch:
            raise _expired("the topic it was in has been deleted")
        return model

    async def find(self, job: Job) -> Standing:
        """Where a job stands.

        Raises InferenceError: RESULT_EXPIRED for what is known no more, MODEL_NOT_FOUND, or UNAVAILABLE.
        """
        outcome = await self._outcomes.load(self.origin(job), job.epoch)
        return await self._settle(job, outcome)

    async def find_many(self, jobs: Sequence[Job]) -> list[Standing | InferenceError]:
        """Where jobs stand, in their order, or why that cannot be told; without their results. Raises
        InferenceError(UNAVAILABLE).
        """
        places = [(self.origin(job), job.epoch) for job in jobs]
        found: list[Standing | InferenceError] = []
        for job, outcome in zip(jobs, await self._outcomes.load_many(places), strict=True):
            try:
                found.append(await self._settle(job, outcome))
            except InferenceError as error:
                found.append(error)
        return found

    async def is_open(self, job: Job) -> bool:
        """Whether a worker may still come upon the job's request. Raises InferenceError(UNAVAILABLE)."""
        try:
            model = self.model(job)
        except InferenceError as error:
            if error.code is ErrorCode.UNAVAILABLE:
                raise
            return False
        partitions = (await self._backlog.of_pool(model.pool, may_be_old=True))[model.topic]
        return self.unfinished(job, model, partitions) is not None

    async def _settle(self, job: Job, outcome: Outcome | None) -> Standing:
        if outcome is not None:
            return self._ended(job, outcome)
        model = self.model(job)
        partitions = (await self._backlog.of_pool(model.pool, may_be_old=True))[model.topic]
        standing = self.unfinished(job, model, partitions)
        if standing is not None:
            return standing
        # Stored before it was acknowledged, so if it is to be found at all it is there now.
        outcome = await self._outcomes.load(self.origin(job), job.epoch)
        if outcome is not None:
            return self._ended(job, outcome)
        # The answer to a caller whose wait ran out is stored by a gateway, a moment after it was acknowledged,
        # or when another gateway adopts it. As long as the reply exists, it is underway.
        if not job.kept or _now_ms() - job.created_ms >= RETENTION_MS:
            raise _expired("results are kept for a limited time")
        return Standing(job, JobState.RUNNING)

    def unfinished(self, job: Job, model: ModelAnnouncement, partitions: Sequence[PartitionBacklog]) -> Standing | None:
        """Where a job stands by its pool's progress alone; None when its request is done.

        Raises InferenceError(UNAVAILABLE) for a partition that is not known yet.
        """
        if job.partition >= len(partitions):  # added a moment ago
            raise InferenceError(ErrorCode.UNAVAILABLE, "the topic's new partitions are not known yet")
        partition = partitions[job.partition]
        if partition.progress.is_done(job.offset):
            return None
        if job.offset < partition.progress.started:
            return Standing(job, JobState.RUNNING)
        position, now_ms = partition.ahead_of(job.offset), _now_ms()
        return Standing(
            job,
            JobState.QUEUED,
            None,
            position,
            self._outlook.eta_s(model, position, partitions, now_ms),
            self._outlook.reason(model, position, now_ms),
        )

    def _ended(self, job: Job, outcome: Outcome) -> Standing:
        if _now_ms() - outcome.finished_ms > self._retention_ms:  # that it is not swept yet changes nothing
            raise _expired("results are kept for a limited time")
        return Standing(job, outcome.state, outcome)


def _expired(why: str) -> InferenceError:
    return InferenceError(
        ErrorCode.RESULT_EXPIRED,
        f"the result of this job is gone: {why}",
        field="id",
        remedy="fetch results within TIDEGATE_RESULT_RETENTION_S, or run the request again",
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
