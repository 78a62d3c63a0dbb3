"""Program: a PyTorch model file, loaded, and what it says of its arguments and results.

TorchScript tells the names of its arguments and how many results there are; an exported program tells all; a compiled
package how many arguments and results. The library is handed in by the one file that imports it (pytorch.py), and Any,
as mypy must give the same answer with and without it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from workers.backend import OutOfMemory, is_out_of_memory
from workers.backends import torch_signature as signatures
from workers.backends.torch_signature import Argument, Signature
from workers.model_config import ModelConfigError
from workers.placement import Placement

DATATYPES = {  # the names of torch's types
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
}
_LOADS = threading.Lock()  # reading an exported program uses a global variable of the library: one thread at a time
_SCALARS = {"IntType": "int", "FloatType": "float", "BoolType": "bool"}


class Program(NamedTuple):
    """A loaded model: what to call with its arguments, and what is known of them."""

    call: Callable[..., Any]
    signature: Signature


def load_program(torch: Any, file: Path, kind: signatures.Format, placement: Placement | None) -> Program:
    """Load a model file of that kind; `placement` None: only to be looked at, not to be called.

    Raises InferenceError(MODEL_LOAD_FAILED), a ModelConfigError for a file compiled for another device, OutOfMemory.
    """
    load = {"torchscript": _torchscript, "exported": _exported, "compiled": _compiled}[kind]
    try:
        if kind == "torchscript":
            return load(torch, file, placement)
        with _LOADS:
            return load(torch, file, placement)
    except InferenceError:
        raise
    except Exception as cause:  # whatever an archive leads to
        if is_out_of_memory(cause):
            raise OutOfMemory(f"no memory to load {file}: {cause}") from cause
        raise InferenceError(
            ErrorCode.MODEL_LOAD_FAILED,
            f"PyTorch {torch.__version__} cannot load {file}: {cause}",
            field="model",
            value=file.name,
            remedy="check that the file is whole and was saved by this version of PyTorch or an older one",
        ) from cause


def _torchscript(torch: Any, file: Path, placement: Placement | None) -> Program:
    device = "meta" if placement is None else device_name(placement)
    module = torch.jit.load(os.fspath(file), map_location=device).eval()
    schema = module.forward.schema
    arguments = []
    for argument in schema.arguments[1:]:  # the first is the module itself
        kind = argument.type.getElementType() if argument.type.kind() == "OptionalType" else argument.type
        scalar: Any = _SCALARS.get(kind.kind(), "")
        if not scalar and kind.kind() != "TensorType" and not argument.has_default_value():
            raise _unservable(file, f"its argument {argument.name!r} is a {argument.type}")
        if scalar or kind.kind() == "TensorType":
            arguments.append(Argument(argument.name, True, argument.has_default_value(), scalar))
    result = schema.returns[0].type
    if result.kind() == "DictType":
        return Program(module, Signature(tuple(arguments), results_have_names=True))
    if result.kind() not in ("TensorType", "TupleType"):
        return Program(module, Signature(tuple(arguments)))
    count = len(result.elements()) if result.kind() == "TupleType" else 1
    return Program(module, Signature(tuple(arguments), signatures.result_specs((), count)))


def _exported(torch: Any, file: Path, placement: Placement | None) -> Program:
    program = torch.export.load(os.fspath(file))
    positional, keywords = program.call_spec.in_spec.children()
    names = program.graph_signature.user_inputs
    if len(names) != positional.num_children + keywords.num_children or not all(isinstance(n, str) for n in names):
        raise _unservable(file, "its arguments are not all tensors")
    nodes = {node.name: node for node in program.graph.nodes}
    given = program.module_call_graph[0].signature.forward_arg_names or names  # as written, `names` are in lower case
    arguments = tuple(
        Argument(name, index >= positional.num_children, False, "", *_described(torch, nodes[node]))
        for index, (name, node) in enumerate(zip(given, names, strict=True))
    )
    out_spec = program.call_spec.out_spec
    keys = list(out_spec.context) if out_spec.type is dict else []
    outputs = program.graph_signature.user_outputs
    results = tuple(
        TensorSpec(spec.name, *_described(torch, nodes.get(node)))
        for spec, node in zip(signatures.result_specs(keys, len(outputs)), outputs, strict=True)
    )
    if placement is not None and placement.kind == "gpu":
        program = torch.export.passes.move_to_device_pass(program, device_name(placement))
    call = program.module() if placement is not None else program
    return Program(call, Signature(arguments, results, bool(keys)))


def _compiled(torch: Any, file: Path, placement: Placement | None) -> Program:
    device = signatures.compiled_for(file)
    if placement is not None and device != ("cuda" if placement.kind == "gpu" else "cpu"):
        raise ModelConfigError(
            f"model file {file} was compiled for {device}, the instance runs on {placement.kind}",
            field="instance_group.kind",
            value=placement.kind,
            remedy="compile the model for the device that it is to run on, or place the instance there",
        )
    index = placement.gpu if placement is not None and placement.kind == "gpu" else -1
    package = torch._inductor.aoti_load_package(os.fspath(file), device_index=index)
    takes, gives = (json.loads(spec)[1] for spec in package.loader.get_call_spec())
    positional, keywords = takes["children_spec"]
    names = json.loads(keywords["context"] or "[]")
    count = len(positional["children_spec"])
    if any(leaf["type"] for part in (positional, keywords) for leaf in part["children_spec"]):
        raise _unservable(file, "its arguments are not all tensors")
    arguments = tuple(Argument(f"INPUT__{index}") for index in range(count))
    arguments += tuple(Argument(name, is_keyword=True) for name in names)
    keys = json.loads(gives["context"]) if gives["type"] == "builtins.dict" else []
    results = signatures.result_specs(keys, len(gives["children_spec"]) or 1)
    return Program(package, Signature(arguments, results, bool(keys)))


def _described(torch: Any, node: Any) -> tuple[str, tuple[int, ...]]:
    """Datatype and shape of a node in an exported program's graph; a size that is not fixed is -1."""
    value = node.meta.get("val") if node is not None else None
    if not isinstance(value, torch.Tensor):
        return "", ()
    datatype = {getattr(torch, name): datatype for datatype, name in DATATYPES.items()}.get(value.dtype, "")
    return datatype, tuple(size if type(size) is int else -1 for size in value.shape)


def _unservable(file: Path, what: str) -> InferenceError:
    return InferenceError(
        ErrorCode.MODEL_LOAD_FAILED,
        f"model file {file} cannot be served: {what}",
        field="model",
        value=file.name,
        remedy="let forward take tensors, or numbers, each as an argument of its own",
    )


def device_name(placement: Placement) -> str:
    """How torch calls the device of a placement."""
    return f"cuda:{placement.gpu}" if placement.kind == "gpu" else "cpu"
