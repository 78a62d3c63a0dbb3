"""WarmUp: the samples that a model runs before it is ready, and whether they fit the model.

Must not know where they are configured, nor how they are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from schemas.model import TensorSpec
from workers.config_error import ConfigFault


class WarmUpInput(msgspec.Struct, frozen=True):
    """One input of a warm-up sample; `shape` is without the batch dimension, `filename` belongs to `file`.

    The file is `<model>/warmup/<filename>`, with one row in the wire's layout.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    source: Literal["zero", "random", "file"]
    filename: str = ""


class WarmUp(msgspec.Struct, frozen=True):
    """A sample to run, `count` times, before a model is ready. `rows` 0: the model has no batch dimension."""

    name: str
    rows: int
    count: int
    inputs: tuple[WarmUpInput, ...]

    def for_batch_size(self, max_batch_size: int) -> WarmUp:
        """The sample of a model whose batch size is known: no rows without a batch dimension, else at least one."""
        if not max_batch_size and self.rows <= 1:
            return msgspec.structs.replace(self, rows=0)
        return msgspec.structs.replace(self, rows=self.rows or 1)

    def row_faults(self, max_batch_size: int) -> Iterator[ConfigFault]:
        """What is wrong with the number of rows."""
        if self.rows > max(1, max_batch_size):
            remedy = f"give 1 to {max_batch_size}" if max_batch_size else "the model has no batch dimension: give 1"
            yield ConfigFault(
                f"model_warmup.{self.name}.batch_size", self.rows, "is more than a batch of this model holds", remedy
            )

    def input_faults(self, specs: tuple[TensorSpec, ...]) -> Iterator[ConfigFault]:
        """Where the sample's inputs are not the model's."""
        given = {sample.name: sample for sample in self.inputs}
        path = f"model_warmup.{self.name}.inputs"
        known = {spec.name for spec in specs}
        for name in given:
            if name not in known:
                yield ConfigFault(path, name, "is no input of the model", f"name one of {', '.join(sorted(known))}")
        for spec in specs:
            sample = given.get(spec.name)
            if sample is None:
                if not spec.optional:
                    yield ConfigFault(path, sorted(given), f"leave out input {spec.name!r}", f"add {spec.name!r}")
            elif sample.datatype != spec.datatype:
                what = f"is not the datatype of the input, {spec.datatype}"
                yield ConfigFault(f"{path}.{spec.name}.data_type", sample.datatype, what, f"give {spec.datatype}")
            elif len(sample.shape) != len(spec.shape) or any(
                dim not in (-1, size) for size, dim in zip(sample.shape, spec.shape, strict=True)
            ):
                what = f"do not fit the input's, {list(spec.shape)}"
                remedy = "give a size for each dimension but the batch's"
                yield ConfigFault(f"{path}.{spec.name}.dims", list(sample.shape), what, remedy)
