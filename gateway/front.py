"""Front: a gateway's servers, HTTP for callers and for those who manage, and gRPC, on the parts behind them."""

from __future__ import annotations

from collections.abc import Callable

from gateway.access_log import AccessLog
from gateway.body import Bodies
from gateway.byte_budget import ByteBudget
from gateway.edge import Edge
from gateway.grpc_infer import GrpcInfer
from gateway.grpc_models import GrpcModels
from gateway.grpc_side import GrpcSide
from gateway.grpc_trail import GrpcTrail
from gateway.infer import Infer
from gateway.job_batch import JobBatch
from gateway.metrics import Metrics
from gateway.models import Models
from gateway.parts import Parts
from gateway.server import Server
from gateway.servers import make_servers
from gateway.settings import GatewaySettings
from gateway.status import Status
from gateway.status_page import status_routes
from gateway.tracing import Tracing


class Front:
    """`http` and `grpc`, which the service starts and ends."""

    def __init__(self, settings: GatewaySettings, parts: Parts, metrics: Metrics, *, state: Callable[[], str]) -> None:
        """`state`: where in its life the gateway is. Raises InferenceError for a certificate of no use."""
        self._settings = settings
        self._parts = parts
        self._metrics = metrics
        self._state = state
        self._models = Models(catalogue=parts.catalogue, is_ready=self._is_ready)
        self._access_log = AccessLog(settings.access_log)
        self.http = self._new_http()
        self.grpc = self._new_grpc()

    def _is_ready(self) -> bool:
        return self._state() == "serving"

    def _new_http(self) -> list[Server]:
        settings, parts = self._settings, self._parts
        budget = ByteBudget(settings.max_in_flight_bytes)
        edge = Edge(
            next_id=parts.dispatcher.next_id,
            access=parts.access,
            count=self._metrics.responses.add,
            access_log=self._access_log,
            tracing=Tracing.if_on(),
        )
        infer = Infer(
            catalogue=parts.catalogue,
            dispatcher=parts.dispatcher,
            outcomes=parts.outcomes,
            idempotency=parts.jobs.idempotency,
            webhooks=parts.webhooks.submissions,
            bodies=Bodies(budget, settings.max_body_bytes),
            edge=edge,
            wait_s=settings.wait_s,
        )
        status = Status(
            catalogue=parts.catalogue,
            fleet=parts.fleet,
            backlog=parts.backlog,
            state=self._state,
            in_flight=lambda: parts.dispatcher.in_flight,
            rate=parts.rates.per_s,
        )
        routes = [
            *parts.statistics.routes(),
            *self._models.routes(),
            *parts.repository.routes(),
            *parts.jobs.routes(),
            *self._new_batch().routes(),
            *parts.webhooks.routes(),
            *parts.scaling.routes(),
            *status_routes(status),
        ]
        return make_servers(
            settings,
            infer=infer,
            routes=routes,
            management_routes=parts.repository.management_routes(),
            metrics=self._metrics,
            edge=edge,
            budget=budget,
        )

    def _new_batch(self) -> JobBatch:
        return JobBatch(
            catalogue=self._parts.catalogue,
            dispatcher=self._parts.dispatcher,
            idempotency=self._parts.jobs.idempotency,
            webhooks=self._parts.webhooks.submissions,
            max_requests=self._settings.max_batch_requests,
            max_body_bytes=self._settings.max_body_bytes,
        )

    def _new_grpc(self) -> GrpcSide:
        parts = self._parts
        return GrpcSide(
            self._settings,
            infer=GrpcInfer(catalogue=parts.catalogue, dispatcher=parts.dispatcher, wait_s=self._settings.wait_s),
            models=GrpcModels(
                catalogue=parts.catalogue,
                models=self._models,
                statistics=parts.statistics,
                repository=parts.repository,
                is_ready=self._is_ready,
            ),
            is_ready=self._is_ready,
            next_id=parts.dispatcher.next_id,
            trail=GrpcTrail(
                count=self._metrics.grpc_responses.add, access_log=self._access_log, tracing=Tracing.if_on()
            ),
            authenticate=None if parts.access.is_open else parts.access.caller,
        )
