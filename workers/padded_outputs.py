"""PaddedOutputs: the outputs of a padded batch; each request gets its rows, cut back to its own length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas.model import TensorSpec
from schemas.request import InferenceRequest
from schemas.tensor import Tensor
from workers.batch import Array, Outputs, tensor_of
from workers.padding import Padder


class PaddedOutputs(Outputs):
    """Outputs that know each request's length, by the row that it begins with."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        specs: Sequence[TensorSpec],
        rows: Sequence[int],
        *,
        batched: bool,
        padder: Padder,
        requests: Sequence[InferenceRequest],
    ) -> None:
        """Raises InferenceError(MODEL_FAILED) as Outputs does."""
        super().__init__(arrays, specs, sum(rows), batched=batched)
        self._padder = padder
        self._arrays = [(spec, arrays[spec.name]) for spec in specs if spec.name in arrays]
        self._lengths: dict[int, int | None] = {}
        first_row = 0
        for request, count in zip(requests, rows, strict=True):
            self._lengths[first_row] = padder.length(request)
            first_row += count

    def rows(self, first_row: int, count: int, wanted: frozenset[str] | None) -> tuple[Tensor, ...]:
        """One request's outputs; those that are cut back are copied. `first_row` is the request's own first one."""
        length = self._lengths[first_row]
        if length is None or length == (bucket := self._padder.bucket(length)):
            return super().rows(first_row, count, wanted)
        tensors: list[Tensor] = []
        for spec, array in self._arrays:
            if wanted is None or spec.name in wanted:
                part = array[first_row : first_row + count] if self._batched else array
                tensors.append(tensor_of(spec, self._padder.cut(spec.name, part, length, bucket)))
        return tuple(tensors)
