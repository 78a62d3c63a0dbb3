"""Inputs: what a caller may give a model, and the tensors that it becomes. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.tensor import Tensor, is_array, is_text

Inputs = Mapping[str, Any]
"""By name: a Tensor, a numpy array, texts or bytes (nested in lists), or numbers (nested in lists), whose datatype the
model then says."""


def needed_datatypes(inputs: Inputs) -> list[str]:
    """Names of the inputs whose datatype only the model can say."""
    return [name for name, value in inputs.items() if not _tells_datatype(value)]


def tensors_of(inputs: Inputs, datatypes: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors. `datatypes` are the model's by input. Raises ValueError naming the input."""
    tensors = {}
    for name, value in inputs.items():
        try:
            tensors[name] = _tensor(name, value, datatypes)
        except ValueError as cause:
            raise ValueError(f"input {name!r}: {cause}") from cause
    return tensors


def _tells_datatype(value: Any) -> bool:
    return isinstance(value, Tensor) or is_array(value) or is_text(value)


def _tensor(name: str, value: Any, datatypes: Mapping[str, str]) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if is_array(value):
        return Tensor.of_array(value)
    if is_text(value):
        return Tensor.of("BYTES", value)
    if name not in datatypes:
        raise ValueError(f"the model has no such input; its inputs are {', '.join(datatypes) or 'not known'}")
    return Tensor.of(datatypes[name], value)
