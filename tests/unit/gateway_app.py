"""The gateway's application with all its routes, without Kafka: enough to look at what is mounted and described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.service import Service
from gateway.settings import GatewaySettings


class BuiltService(Service):
    """A service that has built its parts and started none."""

    def __init__(self, store: Path) -> None:
        super().__init__(GatewaySettings(job_key="a key for tests that is long", store=str(store)))  # type: ignore[arg-type]  # pydantic makes a secret of it
        self._build()

    @property
    def app(self) -> Any:
        """The ASGI application."""
        return self._server.config.app
