"""Signature of a PyTorch model: which argument each input goes to, and which result each output is. Pure.

A model's results have an order and seldom names, and a compiled package does not even name its arguments. So the names
of a configuration are taken, in this order: those of the model file (arguments of `forward`, keys of a dict); Triton's
`<name>__<index>`, which counts arguments and results from 0; where none of them is one of the model's, their order.
Must not know PyTorch.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from workers.model_config import ModelConfig, ModelConfigError, ModelDescription

# Datatypes whose element a scalar takes; the first is what it is by itself.
_SCALAR_DATATYPES = {
    "int": ("INT64", "INT32", "INT16", "INT8", "UINT32", "UINT16", "UINT8"),
    "float": ("FP64", "FP32", "FP16"),
    "bool": ("BOOL",),
}
_TOO_FEW_ROWS = re.compile(r"dim value is too small at 0, expected it to be >= ([0-9]+)")
_INDEXED = re.compile(r".*__([0-9]+)")

Format = Literal["torchscript", "exported", "compiled"]


class Argument(msgspec.Struct, frozen=True):
    """One argument. A scalar is no tensor but takes the one element of one. Datatype '' and shape (): not known."""

    name: str
    is_keyword: bool = False  # given by name
    is_optional: bool = False
    scalar: Literal["", "int", "float", "bool"] = ""
    datatype: str = ""
    shape: tuple[int, ...] = ()


class Signature(msgspec.Struct, frozen=True):
    """What a model file says of its arguments and results; the latter None where not even their number is known.

    `results_have_names`: the model gives a dict, and the names of its results are those of the dict.
    """

    arguments: tuple[Argument, ...]
    results: tuple[TensorSpec, ...] | None = None
    results_have_names: bool = False

    def description(self) -> ModelDescription:
        """The signature in the words of a configuration; what is not known is empty."""
        inputs = (
            TensorSpec(
                argument.name,
                argument.datatype or _SCALAR_DATATYPES.get(argument.scalar, ("",))[0],
                argument.shape,
                argument.is_optional,
            )
            for argument in self.arguments
        )
        return ModelDescription(tuple(inputs), self.results or ())


def result_specs(names: Sequence[str], count: int) -> tuple[TensorSpec, ...]:
    """Specs of results of which only the names are known, or (no names) only how many there are."""
    return tuple(TensorSpec(name, "", ()) for name in names or [f"OUTPUT__{index}" for index in range(count)])


def format_of(file: Path) -> Format:
    """What a model file is, from the names in its archive; nothing in it is run. Raises MODEL_LOAD_FAILED."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError) as cause:
        raise _unreadable(file, f"is no PyTorch archive: {cause}") from cause
    if any(name.startswith("data/aotinductor/") for name in names):
        return "compiled"
    if any(name.startswith("models/") for name in names) or "serialized_exported_program.json" in names:
        return "exported"
    if "constants.pkl" in names:
        return "torchscript"
    raise _unreadable(file, "holds weights or a pickled object, which cannot be served without the model's code")


def compiled_for(file: Path) -> str:
    """The device that a compiled package was made for, "cpu" or "cuda". Raises MODEL_LOAD_FAILED."""
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith("wrapper_metadata.json"):
                return str(json.loads(archive.read(name)).get("AOTI_DEVICE_KEY", ""))
    raise _unreadable(file, "is a compiled package that does not say for which device")


def least_rows(error: str) -> int:
    """The rows that a compiled package wants at least, from its error for a batch of fewer; 0 for other errors."""
    match = _TOO_FEW_ROWS.search(error)
    return int(match[1]) if match else 0


def _unreadable(file: Path, what: str) -> InferenceError:
    return InferenceError(
        ErrorCode.MODEL_LOAD_FAILED,
        f"model file {file} {what}",
        field="model",
        value=file.name,
        remedy="save it by torch.jit.save, torch.export.save or aoti_compile_and_package, or use the python backend",
    )


def bind_inputs(config: ModelConfig, signature: Signature) -> dict[str, int]:
    """The position of the argument that each input goes to. Raises ModelConfigError where that cannot be told."""
    names = [spec.name for spec in config.inputs]
    known = [argument.name for argument in signature.arguments]
    positions = _positions(names, known)
    if positions is None or sorted(set(positions)) != sorted(positions) or max(positions, default=-1) >= len(known):
        raise ModelConfigError(
            f"model {config.name!r} is configured with inputs {', '.join(names)}, its file takes {', '.join(known)}",
            field="input.name",
            value=names,
            remedy="name each argument once: as the file does, or <name>__0, <name>__1 and so on",
        )
    for spec, position in zip(config.inputs, positions, strict=True):
        scalar = signature.arguments[position].scalar
        if scalar and config.max_batch_size:
            raise ModelConfigError(
                f"input {spec.name!r} of model {config.name!r} is one {scalar} for a whole batch",
                field="max_batch_size",
                value=config.max_batch_size,
                remedy="set max_batch_size: 0, or let the model take a tensor there",
            )
    return dict(zip(names, positions, strict=True))


def bind_outputs(config: ModelConfig, signature: Signature) -> dict[str, int | str]:
    """The index, or the key, of the result that is each output. Raises ModelConfigError where that cannot be told."""
    names = [spec.name for spec in config.outputs]
    if signature.results_have_names:
        known = [spec.name for spec in signature.results or ()]
        if known and not set(names) <= set(known):
            raise ModelConfigError(
                f"model {config.name!r} is configured with outputs {', '.join(names)}, its file gives "
                f"{', '.join(known)}",
                field="output.name",
                value=names,
                remedy="name each output as the file does",
            )
        return {name: name for name in names}
    positions = _positions(names, []) or list(range(len(names)))
    if signature.results is not None and max(positions, default=-1) >= len(signature.results):
        raise ModelConfigError(
            f"model {config.name!r} is configured with outputs {', '.join(names)}, its file gives "
            f"{len(signature.results)}",
            field="output",
            value=names,
            remedy=f"configure at most {len(signature.results)} outputs, in the model's order or as <name>__<index>",
        )
    return dict(zip(names, positions, strict=True))


def check_agrees(
    config: ModelConfig, signature: Signature, inputs: dict[str, int], outputs: dict[str, int | str]
) -> None:
    """Raise ModelConfigError where datatypes or shapes differ, as far as the file tells them."""
    described = []
    for spec in config.inputs:
        argument = signature.arguments[inputs[spec.name]]
        datatypes = _SCALAR_DATATYPES.get(argument.scalar, (argument.datatype or spec.datatype,))
        datatype = spec.datatype if spec.datatype in datatypes else datatypes[0]
        described.append(TensorSpec(spec.name, datatype, argument.shape))
    for position, argument in enumerate(signature.arguments):
        if position not in inputs.values():
            described.append(TensorSpec(argument.name, argument.datatype, argument.shape, argument.is_optional))
    results = []
    for spec in config.outputs:
        actual = _result(signature, outputs[spec.name]) or TensorSpec(spec.name, "", ())
        results.append(TensorSpec(spec.name, actual.datatype or spec.datatype, actual.shape))
    config.check_agrees(ModelDescription(tuple(described), tuple(results)))


def pick(model: str, result: Any, places: dict[str, int | str], names: Sequence[str]) -> list[Any]:
    """The named outputs in what a model gave: a tensor, a tuple or list of them, or a dict. Any: tensors, here unknown.

    Raises InferenceError(MODEL_FAILED) where the model gives something else or fewer.
    """
    by_name: dict[str, Any] | None = result if isinstance(result, dict) else None
    if hasattr(result, "_asdict") and set(places) <= set(result._fields):  # a named tuple, meant by its names
        by_name = result._asdict()
    sequence = list(result) if isinstance(result, tuple | list) else [result]
    found = []
    for name in names:
        place = places[name]
        if by_name is not None:
            value = by_name.get(name)
        else:
            value = sequence[place] if isinstance(place, int) and place < len(sequence) else None
        if value is None:
            has = ", ".join(map(str, by_name)) if by_name is not None else f"{len(sequence)} of them"
            raise InferenceError(
                ErrorCode.MODEL_FAILED,
                f"model {model!r} gave no output {name!r}, but {has}",
                field=f"outputs.{name}",
                remedy="correct the outputs in the model's config.pbtxt, or the model",
            )
        found.append(value)
    return found


def _result(signature: Signature, place: int | str) -> TensorSpec | None:
    results = signature.results or ()
    if isinstance(place, str):
        return next((spec for spec in results if spec.name == place), None)
    return results[place] if place < len(results) else None


def _positions(names: Sequence[str], known: Sequence[str]) -> list[int] | None:
    """Where each name stands: among the known ones, or by its own number, or by order; None if only some are known."""
    if known and set(names) <= set(known):
        return [known.index(name) for name in names]
    if set(names) & set(known):
        return None
    indexed = [_INDEXED.fullmatch(name) for name in names]
    if names and all(indexed):
        return [int(match[1]) for match in indexed if match]
    return list(range(len(names)))
