"""GrpcHealth: grpc.health.v1, the health service that gRPC's clients and probes ask. Knows no Kafka.

The library's messages, not its service: of that, the first of several watchers that leaves takes the news from all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from gateway.grpc_visit import Context, Visit
from schemas.errors import ErrorCode, InferenceError

SERVICE = "grpc.health.v1.Health"

_SERVING: bytes = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()
_NOT_SERVING: bytes = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING).SerializeToString()
_UNKNOWN: bytes = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN).SerializeToString()


class GrpcHealth:
    """The calls Check and Watch: of the server, which is named "", and of each service in `services`."""

    def __init__(self, *, services: frozenset[str], is_ready: Callable[[], bool]) -> None:
        self._names = services | {"", SERVICE}
        self._is_ready = is_ready
        self._news = asyncio.Condition()
        self._closed = False

    async def note_change(self) -> None:
        """Tell the watchers that `is_ready` may say something else now."""
        async with self._news:
            self._news.notify_all()

    async def close(self) -> None:
        """Tell the watchers that this ends, and end their calls."""
        self._closed = True
        await self.note_change()

    async def check(self, body: bytes, visit: Visit) -> bytes:
        """The call Check. Raises InferenceError(MODEL_NOT_FOUND), a NOT_FOUND, for a service that there is none of."""
        name = HealthCheckRequest.FromString(body).service
        if name not in self._names:
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no service {name!r}",
                field="service",
                value=name,
                remedy=f"ask for one of {', '.join(sorted(filter(None, self._names)))}, or for none, the whole server",
            )
        return self._status()

    async def watch(self, body: bytes, context: Context) -> None:
        """The call Watch: the status now and whenever it changes, until the caller or the gateway leaves."""
        name = HealthCheckRequest.FromString(body).service
        told = b""
        while not self._closed:
            async with self._news:
                status = self._status() if name in self._names else _UNKNOWN
                if status == told:
                    await self._news.wait()
                    continue
            await context.write(status)
            told = status

    def _status(self) -> bytes:
        return _SERVING if self._is_ready() and not self._closed else _NOT_SERVING
