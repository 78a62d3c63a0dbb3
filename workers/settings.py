"""Settings of the worker's commands: each field is a flag, an environment variable TIDEGATE_<FIELD>, and help text.

Knows no client and no model.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

from pydantic import AliasChoices, BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import CliPositionalArg, CliToggleFlag, SettingsConfigDict

from workers.settings_kafka import KafkaAccessSettings


class KafkaSettings(KafkaAccessSettings):
    """Where Kafka is, how one proves oneself to it, and what is ours there."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", cli_kebab_case=True, cli_implicit_flags=True, use_attribute_docstrings=True
    )

    prefix: str = Field("tidegate", description="prefix of every topic and group of this installation")


class WorkerSettings(KafkaSettings):
    """Where Kafka, the models and the object store are."""

    repository: str = Field(
        "models", description="model repository in Triton's layout: a directory or s3://bucket/prefix"
    )
    store: str = Field(
        ".tidegate/store", description="object store of results and large payloads: a directory or s3://bucket/prefix"
    )
    cache: Path = Field(
        Path(gettempdir()) / "tidegate-models", description="directory for models fetched from S3, shared by workers"
    )
    cache_bytes: NonNegativeInt = Field(
        0, description="bytes that this directory may hold; 0: all of its disk but for a tenth"
    )
    pool: str = Field("default", description="the pool: one consumer group, one Deployment, one ScaledObject")
    models: list[str] = Field([], description="models to serve, as a JSON list; empty: all of the repository")
    model_memory_bytes: NonNegativeInt = Field(
        0, description="RAM that loaded models may hold; 0: 70 % of what the process may use"
    )
    gpu_memory_ratio: PositiveFloat = Field(
        0.9, le=1, description="part of each GPU's free memory that models may hold"
    )
    partitions: PositiveInt = Field(
        8, description="partitions of topics created here: the most workers that a pool can use"
    )
    replication_factor: PositiveInt = Field(1, description="replicas of topics created here; 3 in production")


class ServeSettings(WorkerSettings):
    """Settings of `serve`."""

    preload: list[str] = Field(
        [],
        description='models to load before the worker is ready, as a JSON list; ["*"]: all; else on the first record',
    )
    repository_poll_s: NonNegativeFloat = Field(
        10.0, description="seconds between looks at the repository, a listing of each model, for what is new; 0: never"
    )
    health_host: str = Field("127.0.0.1", description="address of /health/live, /health/ready and /metrics")
    health_port: NonNegativeInt = Field(8081, description="port of the same; 0: any free one, told in the log")
    drain_s: PositiveFloat = Field(
        25.0, description="seconds to finish what was taken after SIGTERM; keep terminationGracePeriodSeconds above it"
    )
    commit_interval_ms: PositiveInt = Field(200, description="milliseconds between commits of finished work")
    max_queued_requests: PositiveInt = Field(
        2048, description="requests of one model held in memory before its topic is paused"
    )
    max_queued_bytes: PositiveInt = Field(
        64 * 1024 * 1024, description="bytes of one model's requests held in memory before its topic is paused"
    )
    claim_above_bytes: PositiveInt = Field(
        512 * 1024, description="answers larger than this go to the object store, the record only refers to them"
    )
    max_stuck_threads: PositiveInt = Field(
        3, description="threads that hang in a model and were replaced, from which on the worker is not live any more"
    )


class CheckSettings(BaseModel):
    """Settings of `check`; no environment variables, for a command that is typed."""

    repository: CliPositionalArg[str] = Field(
        description="model repository in Triton's layout: a directory or s3://bucket/prefix"
    )
    as_json: CliToggleFlag[bool] = Field(
        default=False, validation_alias=AliasChoices("json"), description="print one JSON object instead of text"
    )


class ScoreSettings(WorkerSettings):
    """Settings of `score`. Run again after an interruption, it goes on where the last checkpoint stands."""

    model: str = Field(..., description="the model to score with")
    version: str = Field("", description="its version; empty: the highest")
    from_topic: str = Field(
        ..., validation_alias=AliasChoices("from", "from_topic"), description="topic of requests, read up to its end"
    )
    to_topic: str = Field(
        ...,
        validation_alias=AliasChoices("to", "to_topic"),
        description="topic for one answer per request, in the order of the source; created if missing",
    )
    group: str = Field(
        "", description="consumer group that keeps the progress; empty: one for this model and pair of topics"
    )
    checkpoint_s: PositiveFloat = Field(1.0, description="seconds between transactions of results and source offsets")
    progress: bool = Field(True, description="show a progress bar (only on a terminal)")


class ReplaySettings(KafkaSettings):
    """Settings of `replay`: which dead letters are meant, and what is done with them."""

    model: list[str] = Field([], description="models whose dead letters are meant, --model a --model b; none: all")
    code: list[str] = Field([], description="error codes, such as model_failed or undecodable_record; none: all")
    stage: list[str] = Field([], description="where it failed: decode, queue, load or infer; none: anywhere")
    cause: str = Field("", description="text that the error's message or its cause holds, in any case")
    since: str = Field(
        "", description="failed since: so long ago (90s, 2h, 7d) or a time such as 2026-11-30T09:00 (UTC)"
    )
    until: str = Field("", description="failed before, likewise")
    limit: NonNegativeInt = Field(0, description="at most so many, those that failed first; 0: all")
    dry_run: bool = Field(False, description="only show what would be sent, grouped by model and cause")
    again: bool = Field(False, description="send also what a former replay has sent")
    any_version: bool = Field(
        False, description="leave out the version that a request asked for: the highest serves it"
    )
    progress: bool = Field(True, description="show a progress bar (only on a terminal)")
