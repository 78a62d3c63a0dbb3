"""JobStatus and ModelStatus: what the gateway tells of a job and of a model. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tidegate.errors import TidegateError, UnreadableAnswerError, error_of_problem


class JobState(StrEnum):
    """Where a job stands. The last four are final: they never change."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment.

    `position`: while queued, how many before it are not done. `eta_s`: when it may have ended, in seconds from then,
    where that is known. `reason`: what it waits for. Times are RFC 3339. `error`: why it did not succeed. `document` is
    all that the gateway told, of a newer one perhaps more than is named here.
    """

    id: str
    model: str
    state: JobState
    position: int | None = None
    eta_s: float | None = None
    reason: str | None = None
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    error: TidegateError | None = None
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self.state.ended


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A version of a model. `state` is READY, UNAVAILABLE, LOADING or UNLOADING, `reason` why it is not ready."""

    name: str
    version: str
    state: str
    reason: str = ""


def job_status(document: Any) -> JobStatus:
    """Read a job's document. Raises UnreadableAnswerError."""
    try:
        error = document.get("error")
        return JobStatus(
            document["id"],
            document.get("model", ""),
            JobState(document["state"]),
            document.get("position"),
            document.get("eta_s"),
            document.get("reason"),
            document.get("created_at"),
            document.get("started_at"),
            document.get("finished_at"),
            error_of_problem(error) if isinstance(error, dict) else None,
            document,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise UnreadableAnswerError("unreadable_answer", f"the answer is no job: {cause!r}") from cause


def model_statuses(documents: Any) -> list[ModelStatus]:
    """Read a repository index. Raises UnreadableAnswerError."""
    try:
        return [
            ModelStatus(each["name"], each.get("version", ""), each.get("state", ""), each.get("reason", ""))
            for each in documents
        ]
    except (AttributeError, KeyError, TypeError) as cause:
        raise UnreadableAnswerError("unreadable_answer", f"the answer is no list of models: {cause!r}") from cause
