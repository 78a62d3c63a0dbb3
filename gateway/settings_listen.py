"""ListenSettings: where the gateway listens, as an operator says it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings

from gateway.server import Listener


class ListenSettings(BaseSettings):
    """Where the gateway listens."""

    host: Annotated[str, Field(description="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="TCP port to listen on; 0: any free one, see the log.")] = (
        8000
    )
    management_host: Annotated[
        str, Field(description="Address of the management port; without keys or tokens only a loopback one.")
    ] = "127.0.0.1"
    management_port: Annotated[
        int | None,
        Field(
            ge=0,
            le=65535,
            description="TCP port of loading, unloading and redelivery, which need the scope manage and leave a record "
            "in the audit topic; 0: any free one; not set: there is none.",
        ),
    ] = None
    tls_certificate: Annotated[
        str, Field(description="PEM file of our certificate and its chain, for HTTPS on both ports; empty: plain HTTP.")
    ] = ""
    tls_key: Annotated[str, Field(description="PEM file of that certificate's key; empty: in the same file.")] = ""

    @model_validator(mode="after")
    def _key_has_certificate(self) -> Self:
        if self.tls_key and not self.tls_certificate:
            raise ValueError("tls_key needs tls_certificate: name both, or none")
        return self

    def listener(self) -> Listener:
        """Where callers come."""
        return Listener(self.host, self.port, self.tls_certificate, self.tls_key)

    def management_listener(self) -> Listener | None:
        """Where those come who manage; None: nowhere."""
        if self.management_port is None:
            return None
        return Listener(
            self.management_host, self.management_port, self.tls_certificate, self.tls_key, "listen_management"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False
