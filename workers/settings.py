"""Settings of the worker's commands: each field is a flag, an environment variable TIDEGATE_<FIELD>, and help text.

Knows no client and no model.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

from pydantic import AliasChoices, Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict


class WorkerSettings(BaseSettings):
    """Where Kafka, the models and the object store are."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", cli_kebab_case=True, cli_implicit_flags=True, use_attribute_docstrings=True
    )

    kafka_bootstrap: str = Field("localhost:9092", description="Kafka brokers, host:port[,host:port...]")
    prefix: str = Field("tidegate", description="prefix of every topic and group of this installation")
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
    partitions: PositiveInt = Field(
        8, description="partitions of topics created here: the most workers that a pool can use"
    )
    replication_factor: PositiveInt = Field(1, description="replicas of topics created here; 3 in production")


class ServeSettings(WorkerSettings):
    """Settings of `serve`."""

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
