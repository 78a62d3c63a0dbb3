"""WebhookSettings: what an operator may set about webhooks. Knows nothing of how they are delivered beyond that."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, CliImplicitFlag

from gateway.webhook_address import parse_networks
from gateway.webhook_schedule import Schedule
from gateway.webhook_secrets import parse_secrets, parse_tenant_secrets


class WebhookSettings(BaseSettings):
    """Webhooks: telling a URL how a job has ended. They are off until there is a secret to sign them with."""

    webhook_secrets: Annotated[
        SecretStr,
        Field(
            description="Secrets that sign webhooks, whsec_ and the base64 of 24 to 64 bytes each "
            "(echo whsec_$(openssl rand -base64 32)), separated by spaces. Several while they are changed: each signs, "
            "receivers take any. Empty: webhooks are off. Better given as TIDEGATE_WEBHOOK_SECRETS: an option shows in "
            "the process list."
        ),
    ] = SecretStr("")
    webhook_tenant_secrets: Annotated[
        SecretStr,
        Field(
            description='Secrets of tenants that have their own, as JSON: {"acme": "whsec_... whsec_..."}. A tenant '
            "that is not named here has the common ones."
        ),
    ] = SecretStr("")
    webhooks_in_process: Annotated[
        CliImplicitFlag[bool],
        Field(description="Deliver webhooks in this gateway's process too, without `python -m gateway webhooks`."),
    ] = False
    webhook_allow_networks: Annotated[
        str,
        Field(
            description="Networks that webhooks may call although they are not public, separated by spaces: "
            "10.20.0.0/16 127.0.0.1/32. Any other private, loopback, link-local or reserved address is refused: a "
            "webhook must not reach what only this machine can."
        ),
    ] = ""
    webhook_allow_http: Annotated[
        CliImplicitFlag[bool],
        Field(description="Take webhook URLs that begin with http:// too; what is sent there can be read by all."),
    ] = False
    webhook_retry_s: Annotated[
        str,
        Field(
            description="Seconds to wait after the first failed attempt, after the second, and so on; after the last "
            "one the webhook becomes a dead letter. Up to a fifth is taken off each at random."
        ),
    ] = "5 15 60 180 600 1800 5400 14400 28800 34200"
    webhook_timeout_s: Annotated[
        float,
        Field(gt=0, le=300, description="Seconds for one attempt, from looking the name up to the answer's head."),
    ] = 15.0
    webhook_concurrency: Annotated[
        int,
        Field(ge=1, le=4096, description="Attempts under way at a time in one process; it holds four times as many."),
    ] = 64
    webhook_endpoint_concurrency: Annotated[
        int,
        Field(ge=1, le=1024, description="Attempts under way at a time to one host of one tenant; one while it fails."),
    ] = 4
    webhook_inline_bytes: Annotated[
        int,
        Field(
            ge=0,
            le=512 * 1024,
            description="Results up to this many bytes of JSON are in the webhook; of larger ones only the link.",
        ),
    ] = 64 * 1024
    webhook_base_url: Annotated[
        str,
        Field(
            description="What links in webhooks begin with, as receivers reach this installation: "
            "https://inference.example.com. Empty: links are paths."
        ),
    ] = ""

    @field_validator("webhook_secrets")
    @classmethod
    def _signing(cls, secrets: SecretStr) -> SecretStr:
        parse_secrets(secrets.get_secret_value())
        return secrets

    @field_validator("webhook_tenant_secrets")
    @classmethod
    def _signing_for_tenants(cls, secrets: SecretStr) -> SecretStr:
        parse_tenant_secrets(secrets.get_secret_value())
        return secrets

    @field_validator("webhook_allow_networks")
    @classmethod
    def _networks(cls, text: str) -> str:
        parse_networks(text)
        return text

    @field_validator("webhook_retry_s")
    @classmethod
    def _schedule(cls, text: str) -> str:
        Schedule.parse(text)
        return text
