"""BatchLayout: between requests as callers send them and arrays as the model takes them: padding and reshapes.

A model with neither goes straight to batch.py. Knows numpy, no backend and no batching rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from schemas.request import InferenceRequest
from workers.batch import Array, Arrays, Outputs, Signature, assemble, signature_of
from workers.model_config import ModelConfig, reshaped
from workers.padded_outputs import PaddedOutputs
from workers.padding import Padder


class BatchLayout:
    """How one model's requests become a batch and the batch's outputs answers. Stateless, so usable in any thread."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._batched = config.max_batch_size > 0
        self._padder = None if config.padding is None else Padder(config.padding, config)
        self._input_dims = {spec.name: spec.shape for spec in config.inputs if spec.name in config.input_reshapes}
        self._output_dims = {spec.name: spec.shape for spec in config.outputs if spec.name in config.output_reshapes}

    def signature(self, request: InferenceRequest) -> Signature:
        """What requests must share to ride in one batch: the inputs that the model will see, padded, without rows."""
        if self._padder is None:
            return signature_of(request, batched=self._batched)
        shapes = self._padder.shapes(request)
        first = 1 if self._batched else 0
        return tuple(sorted((name, datatype, shape[first:]) for name, (datatype, shape) in shapes.items()))

    def assemble(self, requests: Sequence[InferenceRequest], rows: int) -> Arrays:
        """The model's inputs: the requests' tensors, in order, padded, stacked and reshaped. One signature for all."""
        padder = self._padder
        arrays = assemble(requests, rows) if padder is None else padder.assemble(requests, rows)
        for name, dims in self._input_dims.items():
            if name in arrays:
                arrays[name] = self._reshaped(arrays[name], dims, self._config.input_reshapes[name])
        return arrays

    def outputs(
        self, arrays: Mapping[str, Array], requests: Sequence[InferenceRequest], rows: Sequence[int]
    ) -> Outputs:
        """The outputs of a batch of these requests, `rows` each, ready to be cut into each request's rows.

        Raises InferenceError(MODEL_FAILED) for outputs that are not as configured.
        """
        if self._output_dims:
            arrays = dict(arrays)
            for name, dims in self._output_dims.items():
                if name in arrays:
                    arrays[name] = self._reshaped(arrays[name], self._config.output_reshapes[name], dims)
        specs = self._config.outputs
        if self._padder is None or not self._padder.cuts_outputs:
            return Outputs(arrays, specs, sum(rows), batched=self._batched)
        return PaddedOutputs(arrays, specs, rows, batched=self._batched, padder=self._padder, requests=requests)

    def _reshaped(self, array: Array, dims: Sequence[int], target: Sequence[int]) -> Array:
        """The array in another shape of the same elements; the batch dimension stays.

        Free dimensions of `target` are those of `dims`, in order. An array that does not fit `dims` is left as it is:
        it is refused where outputs are checked, or by the model.
        """
        lead = array.shape[:1] if self._batched else ()
        sizes = array.shape[len(lead) :]
        if len(sizes) != len(dims):
            return array
        shape = (*lead, *reshaped(sizes, dims, target))
        return array.reshape(shape) if math.prod(shape) == array.size else array
