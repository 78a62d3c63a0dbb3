"""JobSettings: what an operator may set about jobs and their results."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings


class JobSettings(BaseSettings):
    """Jobs: waiting for them, submitting many, how long results and payloads are kept."""

    result_retention_s: Annotated[
        float,
        Field(
            gt=0, description="Seconds for which a job's result can be fetched after its end; then it is 410, and gone."
        ),
    ] = 24 * 3600.0
    payload_retention_s: Annotated[
        float,
        Field(
            gt=0,
            description="Seconds for which large requests are kept. Not less than records stay in request topics and "
            "dead letters: both refer to them.",
        ),
    ] = 31 * 24 * 3600.0
    sweep_every_s: Annotated[
        float,
        Field(ge=0, description="Seconds between two removals of what is too old, by one gateway of all; 0: never."),
    ] = 600.0
    idempotency_window_s: Annotated[
        float, Field(gt=0, description="Seconds for which an Idempotency-Key means the same request.")
    ] = 24 * 3600.0
    max_job_wait_s: Annotated[
        float, Field(ge=0, description="Longest ?wait= of job routes in seconds; a longer one is cut to it.")
    ] = 60.0
    max_waiting: Annotated[
        int,
        Field(ge=1, description="Jobs that may be waited for at a time, by ?wait= and event streams; one more is 429."),
    ] = 10_000
    watch_interval_ms: Annotated[
        int,
        Field(ge=10, description="Milliseconds between looks at a pool's progress while callers wait for its jobs."),
    ] = 200
    event_ping_s: Annotated[
        float,
        Field(gt=0, description="Seconds without an event after which an event stream sends a comment, to stay open."),
    ] = 15.0
    max_batch_requests: Annotated[
        int, Field(ge=1, le=100_000, description="Requests in one batch, and ids in one question about many jobs.")
    ] = 1000
    presign_above_bytes: Annotated[
        int,
        Field(
            ge=0,
            description="Results above this many bytes are answered 303 with a URL of the object store, where it has "
            "such, in the form they are stored in; 0: never. Callers must be able to reach the store.",
        ),
    ] = 8 * 1024 * 1024
    presign_for_s: Annotated[
        int, Field(ge=1, le=7 * 24 * 3600, description="Seconds for which such a URL is good.")
    ] = 900
