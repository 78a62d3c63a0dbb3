"""GrpcSettings: what an operator may set of the gRPC side. Must not know a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings


class GrpcSettings(BaseSettings):
    """The gRPC side of the gateway, on the same host as HTTP."""

    grpc_port: Annotated[
        int,
        Field(
            ge=-1,
            le=65535,
            description="TCP port of the gRPC protocol; 0: any free one, see the log; -1: no gRPC.",
        ),
    ] = 8001
    grpc_management_port: Annotated[
        int,
        Field(
            ge=-1,
            le=65535,
            description="TCP port that also loads and unloads models over gRPC, for operators only; 0: any free one, "
            "see the log; -1: none.",
        ),
    ] = -1
    grpc_tls_certificate: Annotated[
        Path | None, Field(description="PEM file with the certificate chain of both gRPC ports; none: no TLS.")
    ] = None
    grpc_tls_key: Annotated[Path | None, Field(description="PEM file with the certificate's private key.")] = None
    grpc_tls_client_ca: Annotated[
        Path | None,
        Field(description="PEM file with the authorities whose client certificates are let in; none: callers need no."),
    ] = None
    grpc_max_calls: Annotated[
        int,
        Field(
            ge=1,
            description="gRPC calls that may be open at a time, streams and health watches among them; one more is "
            "answered RESOURCE_EXHAUSTED. More than max-in-flight, or its better answer is never given.",
        ),
    ] = 4096
    grpc_stream_in_flight: Annotated[
        int,
        Field(ge=1, description="Requests of one gRPC stream that may wait at a time; the next ones stay unread."),
    ] = 64
    grpc_keepalive_s: Annotated[
        float,
        Field(ge=1, description="Seconds after which a silent gRPC connection is asked whether it is still there."),
    ] = 60.0

    @model_validator(mode="after")
    def _certificate_and_key(self) -> Self:
        if (self.grpc_tls_certificate is None) != (self.grpc_tls_key is None):
            raise ValueError("grpc_tls_certificate and grpc_tls_key go together: set both, or neither for no TLS")
        if self.grpc_tls_client_ca is not None and self.grpc_tls_certificate is None:
            raise ValueError(
                "grpc_tls_client_ca needs grpc_tls_certificate and grpc_tls_key: without TLS nobody is asked"
            )
        return self
