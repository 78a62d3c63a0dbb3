"""Model reference and model metadata: what a caller may send to a model, and the check of a request against it.

Knows no repository and no config.pbtxt; workers announce the metadata, the gateway and the workers check with it.
"""

from __future__ import annotations

import msgspec

from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.request import InferenceRequest, RequestedOutput
from schemas.tensor import Tensor


class ModelRef(msgspec.Struct, frozen=True):
    """A model by name and version; an empty version means the highest that is served."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}/{self.version}" if self.version else self.name


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input or output of a model. `shape` is without the batch dimension; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


class ModelMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model takes and gives.

    `max_batch_size` 0: shapes are exact. N > 0: every tensor has a leading batch dimension of 1..N rows.
    `versions` are the served ones in ascending order; the last is the default.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def resolve(self, version: str) -> str:
        """The version to run. Raises InferenceError(MODEL_NOT_FOUND) for one that is not served."""
        if not version:
            return self.versions[-1]
        if version not in self.versions:
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"model {self.name!r} has no version {version!r}",
                field="version",
                value=version,
                remedy=f"use one of {', '.join(self.versions)}, or none for the latest",
            )
        return version

    def check(self, request: InferenceRequest) -> int:
        """Raise InferenceError unless `request` fits; return its rows (1 where there is no batch dimension)."""
        rows = 0
        inputs = request.inputs
        if [tensor.name for tensor in inputs] == self._input_names:  # nearly always: all of them, in the model's order
            for tensor, spec in zip(inputs, self.inputs, strict=True):
                rows = self._check_input(tensor, spec, rows)
        else:
            rows = self._check_by_name(inputs)
        if request.outputs:
            known = {spec.name: spec for spec in self.outputs}
            for output in request.outputs:
                if output.name not in known:
                    raise self._unknown("output", output.name, self.outputs)
                spec = known.pop(output.name)
                if output.parameters:
                    _check_classification(output, spec)
        return rows or 1

    @property
    def _input_names(self) -> list[str]:
        return [spec.name for spec in self.inputs]

    def _check_by_name(self, inputs: tuple[Tensor, ...]) -> int:
        specs = {spec.name: spec for spec in self.inputs}
        rows = 0
        for tensor in inputs:
            spec = specs.pop(tensor.name, None)
            if spec is None:
                raise self._unknown("input", tensor.name, self.inputs)
            rows = self._check_input(tensor, spec, rows)
        for spec in specs.values():
            if not spec.optional:
                raise invalid(
                    f"input {spec.name!r} of model {self.name!r} is missing",
                    field="inputs",
                    value=[tensor.name for tensor in inputs],
                    remedy=f"add {spec.name!r}: {spec.datatype} of shape {self._wire_shape(spec)}, each input once",
                )
        return rows

    def _check_input(self, tensor: Tensor, spec: TensorSpec, rows: int) -> int:
        if tensor.datatype != spec.datatype:
            raise invalid(
                f"input {tensor.name!r} is {tensor.datatype}, model {self.name!r} takes {spec.datatype}",
                field=f"inputs.{tensor.name}.datatype",
                value=tensor.datatype,
                remedy=f"send {spec.datatype}",
            )
        shape, dims = tensor.shape, spec.shape
        if self.max_batch_size:
            if not shape or not 1 <= shape[0] <= self.max_batch_size or (rows and shape[0] != rows):
                raise invalid(
                    f"input {tensor.name!r} has shape {list(shape)}: the first dimension is the batch, "
                    f"1 to {self.max_batch_size} rows, the same for every input",
                    field=f"inputs.{tensor.name}.shape",
                    value=list(shape),
                    remedy=f"send shape {self._wire_shape(spec)}",
                )
            rows, shape = shape[0], shape[1:]
        if shape != dims and not _fits(shape, dims):
            raise invalid(
                f"input {tensor.name!r} has shape {list(tensor.shape)}, model {self.name!r} takes "
                f"{self._wire_shape(spec)}",
                field=f"inputs.{tensor.name}.shape",
                value=list(tensor.shape),
                remedy="-1 in the model's shape stands for any size; all other dimensions must be equal",
            )
        return rows

    def _wire_shape(self, spec: TensorSpec) -> list[int]:
        return [-1, *spec.shape] if self.max_batch_size else list(spec.shape)

    def _unknown(self, kind: str, name: str, specs: tuple[TensorSpec, ...]) -> InferenceError:
        return invalid(
            f"model {self.name!r} has no {kind} {name!r}, or it is given twice",
            field=f"{kind}s",
            value=name,
            remedy=f"its {kind}s are {', '.join(spec.name for spec in specs)}",
        )


def _check_classification(output: RequestedOutput, spec: TensorSpec) -> None:
    count = output.parameters.get("classification", 0)
    field = f"outputs.{output.name}.parameters.classification"
    if type(count) is not int or not 0 <= count < 1 << 31:
        raise invalid("it is no number of classes", field=field, value=count, remedy="send a whole number of classes")
    if count and spec.datatype == "BYTES":
        raise invalid(
            f"output {output.name!r} is BYTES, which have no highest value",
            field=field,
            value=count,
            remedy="ask for classes of a numeric output",
        )


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    if len(shape) != len(dims):
        return False
    return all(want in (got, -1) for got, want in zip(shape, dims, strict=True))
