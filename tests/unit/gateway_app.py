"""The gateway's applications with all their routes, without Kafka: enough to look at what is mounted and described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.front import Front
from gateway.metrics import Metrics
from gateway.parts import Parts
from gateway.settings import GatewaySettings


class BuiltGateway:
    """A gateway that has built its parts and started none."""

    def __init__(self, store: Path) -> None:
        settings = GatewaySettings(job_key="a key for tests that is long", store=str(store))  # type: ignore[arg-type]  # pydantic makes a secret of it
        metrics = Metrics()
        self._parts = Parts(settings, metrics)
        self._front = Front(settings, self._parts, metrics, state=lambda: "starting")

    @property
    def app(self) -> Any:
        """The ASGI application for callers."""
        return self._front.http[0].config.app

    @property
    def management_routes(self) -> list[Any]:
        """What is mounted on the management port."""
        return self._parts.repository.management_routes()
