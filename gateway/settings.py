"""GatewaySettings: everything an operator may set, from the environment or the command line.

Must not know what the settings are used for beyond their meaning to an operator.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.settings_access import AccessSettings
from gateway.settings_connections import ConnectionSettings
from gateway.settings_grpc import GrpcSettings
from gateway.settings_jobs import JobSettings
from gateway.settings_kafka import KafkaAccessSettings
from gateway.settings_limits import LimitSettings
from gateway.settings_listen import ListenSettings, is_loopback
from gateway.settings_telemetry import TelemetrySettings
from gateway.settings_webhooks import WebhookSettings
from schemas.errors import InferenceError
from schemas.topics import Topics

_KEY_REMEDY = "set TIDEGATE_JOB_KEY to a secret that all gateways share, made by: openssl rand -hex 32"


class GatewaySettings(
    ListenSettings,
    KafkaAccessSettings,
    AccessSettings,
    LimitSettings,
    ConnectionSettings,
    JobSettings,
    WebhookSettings,
    GrpcSettings,
    TelemetrySettings,
    BaseSettings,
):
    """The gateway of tidegate: HTTP in, Kafka records out, answers back.

    Every option is also an environment variable: --kafka-bootstrap is TIDEGATE_KAFKA_BOOTSTRAP. An option wins.
    """

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE_", cli_kebab_case=True, cli_prog_name="python -m gateway", frozen=True
    )

    prefix: Annotated[
        str, Field(description="What the names of all topics and groups of this installation begin with.")
    ] = "tidegate"
    store: Annotated[
        str, Field(description="Object store of results and large payloads: a directory or s3://bucket/prefix.")
    ] = "./.tidegate/store"
    job_key: Annotated[
        SecretStr,
        Field(
            description="Secret that signs job ids, 16 characters or more, the same in every gateway. Better given as "
            "TIDEGATE_JOB_KEY: an option shows in the process list."
        ),
    ]
    reply_partitions: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="Partitions of the replies topic, used when it is created. Two for each gateway: in a rolling "
            "update runs there are more.",
        ),
    ] = 8
    replication_factor: Annotated[
        int, Field(ge=1, le=100, description="Copies of each partition of the topics that the gateway creates.")
    ] = 1
    wait_s: Annotated[
        float,
        Field(ge=0, le=3600, description="Longest synchronous wait in seconds, then 202 and a job id; 0: never wait."),
    ] = 30.0
    max_body_bytes: Annotated[int, Field(ge=1, description="Largest request body in bytes; a larger one is 413.")] = (
        64 * 1024 * 1024
    )
    claim_above_bytes: Annotated[
        int,
        Field(
            ge=0,
            le=900 * 1024,
            description="Requests above this many bytes travel through the object store; 0: all do.",
        ),
    ] = 512 * 1024
    drain_s: Annotated[
        float, Field(ge=0, description="Seconds for an orderly stop, waiting requests included; 0: stop at once.")
    ] = 25.0
    status_cache_ms: Annotated[
        int, Field(ge=0, description="Milliseconds for which a pool's progress is reused by job status; 0: never.")
    ] = 200

    @field_validator("job_key")
    @classmethod
    def _long_enough(cls, key: SecretStr) -> SecretStr:
        if len(key.get_secret_value()) < 16:
            raise ValueError("shorter than 16 characters")
        return key

    @model_validator(mode="after")
    def _management_is_guarded(self) -> Self:
        open_to_all = self.api_keys_file is None and not self.jwt_jwks
        manages = self.management_port is not None or self.grpc_management_port >= 0
        if manages and open_to_all and not is_loopback(self.management_host):
            raise ValueError(
                f"management_host {self.management_host} can be reached from elsewhere, and nothing tells who may "
                "manage: set api_keys_file or jwt_jwks, or use 127.0.0.1"
            )
        return self

    @field_validator("prefix")
    @classmethod
    def _usable(cls, prefix: str) -> str:
        try:
            Topics(prefix)
        except InferenceError as error:
            raise ValueError(f"{error.message}; {error.remedy}") from error
        return prefix


def remedy(field: str) -> str:
    """What to do about a missing or refused setting."""
    if field == "job_key":
        return _KEY_REMEDY
    if field == "webhook_secrets":
        return "set TIDEGATE_WEBHOOK_SECRETS to a secret made by: echo whsec_$(openssl rand -base64 32)"
    return f"see --help; as an environment variable it is TIDEGATE_{field.upper()}"
