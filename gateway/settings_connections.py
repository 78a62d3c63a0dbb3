"""ConnectionSettings: what one client may take, as an operator says it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings

from gateway.connection import ConnectionLimits


class ConnectionSettings(BaseSettings):
    """What one client may take. Times in seconds."""

    max_connections: Annotated[
        int, Field(ge=1, description="Connections at a time; one more is answered 503 and closed.")
    ] = 16_384
    max_header_bytes: Annotated[
        int, Field(ge=1024, description="Bytes of a request's head; a larger one is answered 431.")
    ] = 32 * 1024
    max_headers: Annotated[int, Field(ge=1, description="Headers of a request; more are answered 431.")] = 100
    header_timeout_s: Annotated[
        float, Field(gt=0, description="Seconds for a request's head; then the connection is closed with 408.")
    ] = 10.0
    body_timeout_s: Annotated[
        float,
        Field(gt=0, description="Seconds for a body, and one more for each KiB that has come; then 408 and closed."),
    ] = 30.0
    write_timeout_s: Annotated[
        float,
        Field(gt=0, description="Seconds in which a client must read a KiB per second of its answer, or is cut off."),
    ] = 30.0
    keep_alive_s: Annotated[
        float,
        Field(gt=0, description="Seconds that an idle connection stays; more than a proxy in front keeps its own."),
    ] = 75.0

    def connection_limits(self) -> ConnectionLimits:
        """The limits that these settings describe."""
        return ConnectionLimits(
            self.max_connections,
            self.max_header_bytes,
            self.max_headers,
            self.header_timeout_s,
            self.body_timeout_s,
            self.write_timeout_s,
            self.keep_alive_s,
        )
