"""InferenceRequest: what a caller wants run, without how it travels."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.tensor import Tensor


class RequestedOutput(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An output that the caller asks for; `parameters` as in the protocol (binary_data, classification)."""

    name: str
    parameters: dict[str, Any] = {}


class InferenceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request: input tensors, and which outputs to return (none named: all).

    `id` is the caller's own and is given back; it identifies nothing inside tidegate.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    parameters: dict[str, Any] = {}
