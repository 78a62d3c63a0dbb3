"""Verdict: what the demo's model says of one file, and which batch the request rode in.

Must not know how an answer travelled: it is made from the answer's tensors and parameters, whatever brought them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from local.magika import INPUT_NAME, top_label
from schemas.request import InferenceRequest
from schemas.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A file's label and its score from 0 to 1, the rows of the batch that it rode in, and where the time went."""

    label: str
    score: float
    batch_rows: int = 0
    queue_ms: float = 0.0
    load_ms: float = 0.0
    infer_ms: float = 0.0

    @classmethod
    def of(cls, scores: npt.NDArray[np.float32], told: Mapping[str, Any]) -> Self:
        """Read the model's scores for one row, and what the answer's parameters tell."""
        label, score = top_label(scores)
        return cls(
            label=label,
            score=score,
            batch_rows=int(told.get("batch_rows", 0)),
            queue_ms=told.get("queue_us", 0) / 1000,
            load_ms=told.get("load_us", 0) / 1000,
            infer_ms=told.get("infer_us", 0) / 1000,
        )


def ask(row: npt.NDArray[np.int32]) -> InferenceRequest:
    """The request for a verdict on one file; `row` is its features, int32 of shape [2048]."""
    return InferenceRequest((Tensor(INPUT_NAME, "INT32", (1, row.size), row.tobytes()),))
