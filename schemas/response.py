"""InferenceResponse and the timings that every response tells. Knows no transport."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.tensor import Tensor


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, in microseconds, and the batch that it rode in.

    queue: arrival at the broker until its batch was cut, less load. load: waiting for the model to load.
    assemble: building the batch's tensors. infer: in the backend. publish: from the end of inference until this answer
    was encoded for publishing. `batch_rows` counts rows, `batch_requests` requests.
    """

    queue_us: int = 0
    load_us: int = 0
    assemble_us: int = 0
    infer_us: int = 0
    publish_us: int = 0
    batch_rows: int = 0
    batch_requests: int = 0


class InferenceResponse(msgspec.Struct, frozen=True, gc=False):
    """One answer: output tensors of the named model version."""

    model_name: str
    model_version: str
    outputs: tuple[Tensor, ...]
    id: str = ""
    parameters: dict[str, Any] = {}
