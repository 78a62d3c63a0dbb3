"""TelemetrySettings: what the gateway tells about requests. Spans have no setting of ours: OpenTelemetry's own
environment variables say where they go.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings


class TelemetrySettings(BaseSettings):
    """A group of the gateway's settings."""

    access_log: Annotated[
        Literal["none", "errors", "all"],
        Field(
            description="Answers to log, one line `access` each: none, errors (from status 500 on, 20 a second at "
            "most), or all, at about 20 us of CPU each."
        ),
    ] = "errors"
