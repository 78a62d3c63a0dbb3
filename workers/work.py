"""Work: one request inside the worker, from being decoded until its outcome is recorded."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.record import Envelope, Origin
from schemas.request import InferenceRequest
from workers.delivery import Delivery


@dataclass(slots=True, eq=False)
class Work:
    """A request with where it came from. `started_ms` is the wall clock when it first ran, 0 before."""

    delivery: Delivery
    envelope: Envelope
    request: InferenceRequest
    started_ms: int = 0

    @property
    def origin(self) -> Origin:
        """The request's place in its topic."""
        return self.delivery.origin

    @property
    def wanted(self) -> frozenset[str] | None:
        """Names of the outputs that the caller asked for; None: all."""
        outputs = self.request.outputs
        return frozenset(output.name for output in outputs) if outputs else None
