"""ModelDescription: what a model file says of itself, and whether a configuration agrees with it.

Must not know which kind of file it was, nor how it was read.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.model import TensorSpec
from workers.config_error import ModelConfigError

Kind = Literal["input", "output"]


class ModelDescription(msgspec.Struct, frozen=True):
    """What a model file says of itself. Shapes are the file's own, any batch dimension included.

    A file need not tell everything. No `inputs`, or no `outputs`: it does not tell them. Datatype '': neither the
    datatype nor the shape is told. Shape () beside a datatype: no dimensions, or a shape that is not told.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def is_batchable(self) -> bool:
        """True when the first dimension of every input and output is free, and so can be the batch."""
        return all(spec.shape[:1] == (-1,) for spec in (*self.inputs, *self.outputs))

    def specs(self, kind: Kind, *, model: str, max_batch_size: int) -> tuple[TensorSpec, ...]:
        """The inputs or outputs for a configuration that gives none, without the batch dimension.

        Raises ModelConfigError when the file does not tell them in full, or has no free first dimension to batch along.
        """
        specs = self._of(kind)
        if not specs or not all(spec.datatype for spec in specs):
            untold = ", ".join(spec.name for spec in specs if not spec.datatype)
            raise ModelConfigError(
                f"the file of model {model!r} does not tell "
                + (f"datatype and shape of {kind} {untold}" if untold else f"its {kind}s"),
                field=kind,
                value=untold,
                remedy=f"give every {kind} in config.pbtxt, with name, data_type and dims",
            )
        if not max_batch_size:
            return specs
        for spec in specs:
            if spec.shape[:1] != (-1,):
                raise _unbatchable(spec, model, max_batch_size)
        return tuple(msgspec.structs.replace(spec, shape=spec.shape[1:]) for spec in specs)

    def check_inputs_given(self, specs: tuple[TensorSpec, ...], *, model: str) -> None:
        """Raise ModelConfigError when an input that the model cannot do without is not among `specs`."""
        given = {spec.name for spec in specs}
        for spec in self.inputs:
            if spec.name not in given and not spec.optional:
                told = f", {spec.datatype} of shape {list(spec.shape)} in the model file" if spec.datatype else ""
                raise ModelConfigError(
                    f"the configuration of model {model!r} leaves out input {spec.name!r}",
                    field="input",
                    value=sorted(given),
                    remedy=f"add {spec.name!r}{told}",
                )

    def check(self, kind: Kind, specs: tuple[TensorSpec, ...], *, model: str, max_batch_size: int) -> None:
        """Raise ModelConfigError where `specs`, which leave the batch dimension out, differ from what is told."""
        known = {spec.name: spec for spec in self._of(kind)}
        for spec in specs if known else ():
            actual = known.get(spec.name)
            if actual is None:
                raise ModelConfigError(
                    f"model {model!r} has no {kind} {spec.name!r} in its file",
                    field=f"{kind}.name",
                    value=spec.name,
                    remedy=f"its {kind}s are {', '.join(known)}",
                )
            if actual.datatype and spec.datatype != actual.datatype:
                raise ModelConfigError(
                    f"{kind} {spec.name!r} of model {model!r} is configured as {spec.datatype}, its file has "
                    f"{actual.datatype}",
                    field=f"{kind}.{spec.name}.data_type",
                    value=spec.datatype,
                    remedy=f"configure {actual.datatype}",
                )
            if actual.shape:
                _check_shape(kind, spec, actual, model, max_batch_size)

    def _of(self, kind: Kind) -> tuple[TensorSpec, ...]:
        return self.inputs if kind == "input" else self.outputs


def _check_shape(kind: Kind, spec: TensorSpec, actual: TensorSpec, model: str, max_batch_size: int) -> None:
    shape = (-1, *spec.shape) if max_batch_size else spec.shape
    if max_batch_size and actual.shape[0] not in (-1, 1 if max_batch_size == 1 else -1):
        raise _unbatchable(actual, model, max_batch_size)
    if len(shape) != len(actual.shape) or any(
        -1 not in pair and pair[0] != pair[1] for pair in zip(shape, actual.shape, strict=True)
    ):
        raise ModelConfigError(
            f"{kind} {spec.name!r} of model {model!r} is configured with shape {list(shape)}, its file has "
            f"{list(actual.shape)}",
            field=f"{kind}.{spec.name}.dims",
            value=list(spec.shape),
            remedy="with max_batch_size > 0, dims leave the batch dimension out; reshape gives the model another shape",
        )


def _unbatchable(spec: TensorSpec, model: str, max_batch_size: int) -> ModelConfigError:
    return ModelConfigError(
        f"model {model!r} cannot be batched: {spec.name!r} has shape {list(spec.shape)} in its file, the "
        "first dimension is not free",
        field="max_batch_size",
        value=max_batch_size,
        remedy="set max_batch_size: 0, or export the model with a free batch dimension",
    )
