"""GrpcSide: all of the gRPC side, put together, and its life: it listens, is ready, ends. Knows no Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.grpc_edge import Authenticate, Edge
from gateway.grpc_health import GrpcHealth
from gateway.grpc_infer import GrpcInfer
from gateway.grpc_models import GrpcModels
from gateway.grpc_server import GrpcServer, handlers
from gateway.grpc_stream import SERVICE, GrpcStream
from gateway.grpc_trail import GrpcTrail
from gateway.settings import GatewaySettings

_GRACE_S = 2.0  # for answers on their way, once nobody waits for a worker any more


class GrpcSide:
    """The public server and the one for management; either may be switched off."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        infer: GrpcInfer,
        models: GrpcModels,
        is_ready: Callable[[], bool],
        next_id: Callable[[], str],
        trail: GrpcTrail,
        authenticate: Authenticate | None = None,
    ) -> None:
        """`authenticate` says who sent this metadata; None: anyone."""
        edge = Edge(next_id=next_id, authenticate=authenticate, trail=trail)
        self._settings = settings
        self._stream = GrpcStream(infer=infer, next_id=next_id, in_flight=settings.grpc_stream_in_flight, trail=trail)
        self._health = GrpcHealth(services=frozenset({SERVICE}), is_ready=is_ready)
        self._ports = {
            name: port
            for name, port in (("public", settings.grpc_port), ("management", settings.grpc_management_port))
            if port >= 0
        }
        self._servers = {
            name: GrpcServer(
                handlers(
                    edge=edge,
                    infer=infer,
                    stream=self._stream,
                    models=models,
                    health=self._health,
                    manages=name == "management",
                ),
                settings,
                max_message_bytes=settings.max_body_bytes,
            )
            for name in self._ports
        }

    async def start(self) -> None:
        """Listen. Raises OSError when a port or the certificate cannot be used."""
        for name, server in self._servers.items():
            host = self._settings.management_host if name == "management" else self._settings.host
            await server.start(host, self._ports[name], name=name)

    async def note_change(self) -> None:
        """Tell who watches the health that readiness may have changed."""
        await self._health.note_change()

    async def stop(self) -> None:
        """End streams and watches, let what is being answered finish, close the ports. May be called again."""
        self._stream.close()
        await self._health.close()
        await asyncio.gather(*(server.stop(_GRACE_S) for server in self._servers.values()))
