"""Servers: a gateway's HTTP servers, for callers and for those who manage, with what stands in front of the routes.

Knows no route.
"""

from __future__ import annotations

from starlette.routing import Route

from gateway.app import make_app, make_router
from gateway.byte_budget import ByteBudget
from gateway.counted_bodies import CountedBodies
from gateway.edge import Edge
from gateway.infer import Infer
from gateway.management import Management
from gateway.metrics import Metrics
from gateway.server import Server
from gateway.settings import GatewaySettings


def make_servers(
    settings: GatewaySettings,
    *,
    infer: Infer,
    routes: list[Route],
    management_routes: list[Route],
    metrics: Metrics,
    edge: Edge,
    budget: ByteBudget,
) -> list[Server]:
    """One server, or two where there is a management port. Raises InferenceError for a certificate of no use."""
    limits = settings.connection_limits()
    app = make_app(
        infer=infer,
        routes=routes,
        metrics=metrics,
        edge=edge,
        management_routes=management_routes,
        open_paths=settings.open_paths,
        budget=budget,
    )
    servers = [Server.of(app, settings.listener(), limits=limits, budget=budget)]
    listener = settings.management_listener()
    if listener is not None:
        router = CountedBodies(make_router(management_routes), budget=budget)
        managed = edge.around(Management(router, access=edge.access), management_routes)
        servers.append(Server.of(managed, listener, limits=limits, budget=budget))
    return servers
