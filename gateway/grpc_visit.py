"""Visit: one gRPC call, or one request of a stream: what came with it. Knows no call of the protocol."""

from __future__ import annotations

import copy
import time
from typing import Any

from gateway.caller import ANYONE
from gateway.grpc_status import Metadata
from gateway.request_id import request_id_of
from gateway.traceparent import traceparent_in

Context = Any  # grpc.aio's servicer context: its stubs are generic over messages, and ours are bytes


class Visit:
    """One call. `sent` is its metadata, names in lower case. `id` is unique among all gateways, `request_id` the
    caller's own if it has one. `model` is empty until it is known.
    """

    __slots__ = ("_context", "begun_s", "caller", "id", "model", "request_id", "sent", "traceparent")

    def __init__(self, context: Context, id_: str) -> None:
        self._context = context
        self.begun_s = time.perf_counter()
        self.id = id_
        self.sent: dict[bytes, bytes] = {
            name.encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in context.invocation_metadata()
        }
        self.request_id = request_id_of(self.sent, id_) if b"x-request-id" in self.sent else id_
        self.caller = ANYONE
        self.model = ""
        self.traceparent = traceparent_in(self.sent).decode()

    def request(self, id_: str) -> Visit:
        """One request of this stream, by the same caller, in the same trace."""
        each = copy.copy(self)
        each.begun_s = time.perf_counter()
        each.id = each.request_id = id_
        return each

    @property
    def origin(self) -> str:
        """The caller's address."""
        return str(self._context.peer())

    @property
    def left_s(self) -> float | None:
        """Seconds until the caller's deadline; None: it has set none."""
        left_s: float | None = self._context.time_remaining()
        return left_s

    @property
    def trailing(self) -> Metadata:
        """What every answer ends with."""
        return (("x-request-id", self.request_id), ("traceparent", self.traceparent))
