"""Lanes: many calls of one kind taken from gRPC's core at a time.

The library's server takes one, and asks for the next when its event loop comes round to it. Each of these rounds goes
through two other threads; under load, requests trickle in one by one, batches to Kafka stay small, and each costs more
than twice the processor time. With lanes beside it, what has come together is taken together.

This uses the library's own functions below its published interface, so its version is pinned in constraints.txt. Where
they are missing, everything works as slowly as without lanes. Knows no call of the protocol.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import grpc
import structlog

_log = structlog.get_logger(__name__)

LANES = 64

_core: Any = import_module("grpc._cython.cygrpc")  # so that its stubs, which know little of it, are not asked
_NEEDED = (
    (_core.AioServer, "_request_registered_call"),
    (_core.AioServer, "is_running"),
    (_core, "_RequestCallError"),
    (_core, "_schedule_rpc_coro"),
    (_core, "_handle_rpc"),
)


class Lanes:
    """Takes the calls of one method of a server. Made before the server starts, opened after.

    Nothing here is ever cancelled: gRPC's core would write into memory that is gone. Lanes end with their server.
    """

    def __init__(self, server: grpc.aio.Server, service: str, method: str, handler: Any, *, max_calls: int) -> None:
        """`handler` is gRPC's own kind. With `max_calls` open, one more is answered RESOURCE_EXHAUSTED."""
        self._server: Any = server
        self._path = f"/{service}/{method}"
        self._handler = handler
        self._max_calls = max_calls
        self._calls: set[asyncio.Task[None]] = set()
        self._lanes: list[asyncio.Task[None]] = []
        self._server.add_registered_method_handlers(service, {method: handler})

    def resolve_handler(self, details: object) -> Any:
        """What gRPC asks for each call: all here have the same handler."""
        return self._handler

    def open(self) -> bool:
        """Begin to take calls; False when this version of the library does not let us."""
        core = getattr(self._server, "_server", None)
        missing = [name for owner, name in _NEEDED if not hasattr(owner, name)]
        if core is None or missing:
            _log.warning("grpc_without_lanes", version=grpc.__version__, missing=missing)
            return False
        loop = asyncio.get_running_loop()
        self._lanes = [loop.create_task(self._take(core), name=f"gRPC lane {number}") for number in range(LANES)]
        return True

    async def _take(self, core: Any) -> None:
        """One lane: takes a call, has it run, takes the next."""
        loop, name = asyncio.get_running_loop(), self._path.encode()
        while core.is_running():
            try:
                state = await core._request_registered_call(name)
            except _core._RequestCallError:  # the server stops, or the connection was gone already
                continue
            too_many = len(self._calls) >= self._max_calls
            call = _core._handle_rpc(self._path, self, (), state, loop, too_many)
            task = loop.create_task(_core._schedule_rpc_coro(call, state, loop, self._path))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
