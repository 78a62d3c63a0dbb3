"""Result: what a model answered. Knows no HTTP and no job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Result:
    """The outputs of one request by name; `result["label"]` is a Tensor.

    `parameters` are the response's, among them where the time went: `queue_us`, `load_us`, `assemble_us`, `infer_us`,
    `publish_us`, and the batch that the request rode in: `batch_rows`, `batch_requests`. `id` is the one that the
    caller gave, `request_id` the gateway's.
    """

    model: str
    version: str
    outputs: Mapping[str, Tensor]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    request_id: str = ""

    def __getitem__(self, name: str) -> Tensor:
        """An output. Raises KeyError."""
        return self.outputs[name]

    def numpy(self) -> dict[str, Any]:
        """All outputs as numpy arrays. Raises ImportError where there is no numpy."""
        return {name: tensor.numpy() for name, tensor in self.outputs.items()}
