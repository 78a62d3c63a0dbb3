"""Padding: how requests of different lengths share a batch, and whether a model's tensors allow it.

Must not know where the settings come from, nor how a batch is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from schemas.model import TensorSpec
from workers.config_error import ConfigFault

_WHOLE = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")


class Padding(msgspec.Struct, frozen=True):
    """Requests of different lengths in one batch: inputs are padded to the smallest bucket that holds them.

    `buckets` ascend; a longer request runs at its own length. `inputs` are padded along their first free dimension with
    `value`; `mask_input` (1 where there is data) and `length_input` are filled in unless the request brings them;
    `outputs` are cut back along their first free dimension to the request's own length.
    """

    buckets: tuple[int, ...]
    inputs: tuple[str, ...]
    value: float = 0.0
    mask_input: str = ""
    length_input: str = ""
    outputs: tuple[str, ...] = ()

    @property
    def filled_inputs(self) -> tuple[str, ...]:
        """The inputs that a request may leave out."""
        return tuple(name for name in (self.mask_input, self.length_input) if name)

    def input_faults(self, specs: tuple[TensorSpec, ...]) -> Iterator[ConfigFault]:
        """What the model's inputs do not allow."""
        known = {spec.name: spec for spec in specs}
        for name in self.inputs:
            yield from _tensor_faults("padding_inputs", name, known)
            if name in known:
                yield from self._value_faults(known[name])
        if self.mask_input:
            yield from _tensor_faults("padding_mask_input", self.mask_input, known)
        if self.length_input:
            yield from _length_faults(self.length_input, known)
        for name in self.filled_inputs:
            if name in self.inputs or self.filled_inputs.count(name) > 1:
                field = "padding_mask_input" if name == self.mask_input else "padding_length_input"
                yield ConfigFault(
                    f"parameters.{field}", name, "is padded or filled twice", "name an input of its own for each"
                )

    def output_faults(self, specs: tuple[TensorSpec, ...]) -> Iterator[ConfigFault]:
        """What the model's outputs do not allow."""
        known = {spec.name: spec for spec in specs}
        for name in self.outputs:
            yield from _tensor_faults("padding_outputs", name, known)

    def _value_faults(self, spec: TensorSpec) -> Iterator[ConfigFault]:
        if spec.datatype in _WHOLE and not self.value.is_integer():
            what = f"is no value of input {spec.name!r}, {spec.datatype}"
            yield ConfigFault("parameters.padding_value", f"{self.value:g}", what, "give a whole number")
        elif spec.datatype in _WHOLE and not _lowest(spec.datatype) <= self.value <= _highest(spec.datatype):
            what = f"is outside of {spec.datatype}, the datatype of input {spec.name!r}"
            remedy = f"give a number from {_lowest(spec.datatype)} to {_highest(spec.datatype)}"
            yield ConfigFault("parameters.padding_value", f"{self.value:g}", what, remedy)


def _tensor_faults(field: str, name: str, known: Mapping[str, TensorSpec]) -> Iterator[ConfigFault]:
    spec = known.get(name)
    path = f"parameters.{field}"
    if spec is None:
        yield _unknown(path, name, known)
    elif spec.datatype == "BYTES" and field != "padding_outputs":
        yield ConfigFault(path, name, "is BYTES, which has no value to pad with", "name tensors of numbers")
    elif -1 not in spec.shape:
        what = f"has no free dimension: its dims are {list(spec.shape)}"
        yield ConfigFault(path, name, what, "name a tensor with a -1 in its dims")


def _length_faults(name: str, known: Mapping[str, TensorSpec]) -> Iterator[ConfigFault]:
    spec = known.get(name)
    path = "parameters.padding_length_input"
    if spec is None:
        yield _unknown(path, name, known)
    elif spec.datatype == "BYTES" or spec.shape not in ((), (1,)):
        what = f"is no single number per row: {spec.datatype} with dims {list(spec.shape)}"
        yield ConfigFault(path, name, what, "name an input of numbers with dims [ 1 ]")


def _unknown(path: str, name: str, known: Mapping[str, TensorSpec]) -> ConfigFault:
    return ConfigFault(path, name, "names no tensor that the model has there", f"name one of {', '.join(known)}")


def _lowest(datatype: str) -> int:
    return -(1 << int(datatype.removeprefix("INT")) - 1) if datatype.startswith("INT") else 0


def _highest(datatype: str) -> int:
    if datatype == "BOOL":
        return 1
    bits = int(datatype.lstrip("UINT"))
    return (1 << bits - 1) - 1 if datatype.startswith("INT") else (1 << bits) - 1
