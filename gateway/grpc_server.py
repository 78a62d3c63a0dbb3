"""GrpcServer: the gRPC servers and what they answer, beside the HTTP server. Knows no Kafka.

Two ports, two servers: the public one refuses what only operators may do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
import structlog

from gateway.grpc_edge import Edge, Unary, refusing
from gateway.grpc_health import SERVICE as HEALTH
from gateway.grpc_health import GrpcHealth
from gateway.grpc_infer import GrpcInfer
from gateway.grpc_lanes import Lanes
from gateway.grpc_models import GrpcModels
from gateway.grpc_stream import SERVICE, GrpcStream
from gateway.settings_grpc import GrpcSettings
from schemas.errors import ErrorCode, InferenceError

_log = structlog.get_logger(__name__)

_NO_SHARED_MEMORY = ("there is no shared memory: models run on other machines", "send tensors in raw_input_contents")
_UNSUPPORTED = {
    "SystemSharedMemoryStatus": _NO_SHARED_MEMORY,
    "SystemSharedMemoryRegister": _NO_SHARED_MEMORY,
    "SystemSharedMemoryUnregister": _NO_SHARED_MEMORY,
    "CudaSharedMemoryStatus": _NO_SHARED_MEMORY,
    "CudaSharedMemoryRegister": _NO_SHARED_MEMORY,
    "CudaSharedMemoryUnregister": _NO_SHARED_MEMORY,
    "TraceSetting": ("tracing is not set by a call", "set OTEL_EXPORTER_OTLP_ENDPOINT where gateways and workers run"),
    "LogSettings": ("logging is not set by a call", "read the gateway's log, one JSON object a line on stderr"),
}
_FOR_ALL = frozenset({"ServerLive", "ServerReady", "ServerMetadata"})
_MANAGEMENT = ("RepositoryModelLoad", "RepositoryModelUnload")


def handlers(
    *, edge: Edge, infer: GrpcInfer, stream: GrpcStream, models: GrpcModels, health: GrpcHealth, manages: bool
) -> dict[str, Any]:
    """What is answered, by the full names of calls. `manages`: loading and unloading too."""
    calls: dict[str, Unary] = {
        "ServerLive": models.live,
        "ServerReady": models.ready,
        "ServerMetadata": models.server,
        "ModelReady": models.model_ready,
        "ModelMetadata": models.metadata,
        "ModelConfig": models.config,
        "ModelStatistics": models.statistics,
        "RepositoryIndex": models.index,
        "RepositoryModelLoad": models.load,
        "RepositoryModelUnload": models.unload,
    }
    table = {_path(name): edge.unary(_path(name), work, known=name not in _FOR_ALL) for name, work in calls.items()}
    if not manages:
        table |= {_path(name): refusing(_NOT_HERE) for name in _MANAGEMENT}
    for name, (why, remedy) in _UNSUPPORTED.items():
        table[_path(name)] = refusing(InferenceError(ErrorCode.UNSUPPORTED, why, remedy=remedy))
    table[_path("ModelInfer")] = edge.unary(_path("ModelInfer"), infer.infer, is_inference=True)
    table[stream.path] = edge.stream(stream.path, stream.serve)
    table[f"/{HEALTH}/Check"] = edge.unary(f"/{HEALTH}/Check", health.check, known=False)
    table[f"/{HEALTH}/Watch"] = edge.unary_stream(health.watch)
    return table


def _path(name: str) -> str:
    return f"/{SERVICE}/{name}"


_NOT_HERE = InferenceError(
    ErrorCode.PERMISSION_DENIED,
    "models are loaded and unloaded on the management port only",
    remedy="ask whoever runs this gateway for its management port (TIDEGATE_GRPC_MANAGEMENT_PORT); a model's first "
    "request loads it, too",
)


class _Calls(grpc.GenericRpcHandler):
    """One look into a table for each call."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._find = table.get

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call, None for one that there is none of."""
        return self._find(handler_call_details.method)


class GrpcServer:
    """The server of one port. `stop` may come at any time, and twice."""

    def __init__(self, table: Mapping[str, Any], settings: GrpcSettings, *, max_message_bytes: int) -> None:
        keepalive_ms = int(settings.grpc_keepalive_s * 1000)
        self._settings = settings
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.grpc_max_calls,
            options=[
                ("grpc.so_reuseport", 0),  # or a second gateway would share the port, and nobody would know
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients may ask as often as this
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        self._server.add_generic_rpc_handlers((_Calls(table),))
        infer = table[_path("ModelInfer")]
        self._lanes = Lanes(self._server, SERVICE, "ModelInfer", infer, max_calls=settings.grpc_max_calls)

    async def start(self, host: str, port: int, *, name: str) -> int:
        """Listen, and say where. Raises OSError when the port or the certificate cannot be used."""
        credentials = await asyncio.to_thread(_credentials, self._settings)
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(where)
            else:
                bound = self._server.add_secure_port(where, credentials)
        except RuntimeError as cause:
            raise OSError(f"cannot listen on {where} for gRPC: {cause}") from cause
        await self._server.start()
        self._lanes.open()
        _log.info("listen_grpc", host=host, grpc_port=bound, name=name, tls=credentials is not None)
        return bound

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, wait so long for those that are open, then end them."""
        await self._server.stop(grace_s)


def _credentials(settings: GrpcSettings) -> grpc.ServerCredentials | None:
    if settings.grpc_tls_certificate is None or settings.grpc_tls_key is None:
        return None
    ca = settings.grpc_tls_client_ca
    return grpc.ssl_server_credentials(
        [(settings.grpc_tls_key.read_bytes(), settings.grpc_tls_certificate.read_bytes())],
        root_certificates=None if ca is None else ca.read_bytes(),
        require_client_auth=ca is not None,
    )
