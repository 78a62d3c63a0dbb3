"""Small models for tests, and how they are laid out as a model repository."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BF16": TensorProto.BFLOAT16,
    "BYTES": TensorProto.STRING,
}
Dims = tuple[int | str | None, ...]
_OPSET = 17
_IR_VERSION = 9  # what every ONNX Runtime that is supported can read


def write_model(
    repository: Path, name: str, model: onnx.ModelProto | None, *, version: int = 1, config: str | None = None
) -> Path:
    """Lay out `<name>/<version>/model.onnx` (none: an empty version) and `<name>/config.pbtxt`; gives the version."""
    directory = repository / name / str(version)
    directory.mkdir(parents=True, exist_ok=True)
    if model is not None:
        (directory / "model.onnx").write_bytes(model.SerializeToString())
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)
    return directory


def identity(datatype: str = "FP32", dims: Dims = ("batch", 4)) -> onnx.ModelProto:
    """OUTPUT0 = INPUT0."""
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    return _model([node], {"INPUT0": (datatype, dims)}, {"OUTPUT0": (datatype, dims)})


def add_sub(dims: Dims = ("batch", 4)) -> onnx.ModelProto:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, FP32."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    both = ("FP32", dims)
    return _model(nodes, {"INPUT0": both, "INPUT1": both}, {"OUTPUT0": both, "OUTPUT1": both})


def row_sum(dims: Dims = ("batch", "length")) -> onnx.ModelProto:
    """OUTPUT0 [batch, 1] = the sum of each row of INPUT0, FP32, of any length."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    node = helper.make_node("ReduceSum", ["INPUT0", "axes"], ["OUTPUT0"], keepdims=1)
    return _model([node], {"INPUT0": ("FP32", dims)}, {"OUTPUT0": ("FP32", (dims[0], 1))}, initializer=[axes])


def picks(dims: Dims = ("batch", 4)) -> onnx.ModelProto:
    """OUTPUT0 = the elements of INPUT0 that the INT64 INDEX names, along the last dimension; fails for others."""
    node = helper.make_node("GatherElements", ["INPUT0", "INDEX"], ["OUTPUT0"], axis=1)
    return _model([node], {"INPUT0": ("FP32", dims), "INDEX": ("INT64", dims)}, {"OUTPUT0": ("FP32", dims)})


def huge() -> onnx.ModelProto:
    """OUTPUT0 = as many FP32 zeros as INPUT0, INT64 [1], says."""
    node = helper.make_node("ConstantOfShape", ["INPUT0"], ["OUTPUT0"])
    return _model([node], {"INPUT0": ("INT64", (1,))}, {"OUTPUT0": ("FP32", (None,))})


def casts(dims: Dims = ("batch", 2)) -> onnx.ModelProto:
    """BF16 in other forms: OUTPUT0 = INPUT0, WIDE = INPUT0 as FP32, TEXT = INPUT0 as BYTES."""
    nodes = [
        helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"]),
        helper.make_node("Cast", ["INPUT0"], ["WIDE"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["WIDE"], ["TEXT"], to=TensorProto.STRING),
    ]
    outputs = {"OUTPUT0": ("BF16", dims), "WIDE": ("FP32", dims), "TEXT": ("BYTES", dims)}
    return _model(nodes, {"INPUT0": ("BF16", dims)}, outputs)


def text_to_bfloat16(dims: Dims = ("batch", 2)) -> onnx.ModelProto:
    """OUTPUT0 (BF16) = INPUT0 (BYTES)."""
    nodes = [
        helper.make_node("Cast", ["INPUT0"], ["WIDE"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["WIDE"], ["OUTPUT0"], to=TensorProto.BFLOAT16),
    ]
    return _model(nodes, {"INPUT0": ("BYTES", dims)}, {"OUTPUT0": ("BF16", dims)})


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[str, Dims]],
    outputs: dict[str, tuple[str, Dims]],
    *,
    initializer: list[onnx.TensorProto] | None = None,
) -> onnx.ModelProto:
    def values(specs: dict[str, tuple[str, Dims]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, ONNX_TYPES[kind], dims) for name, (kind, dims) in specs.items()]

    graph = helper.make_graph(nodes, "test", values(inputs), values(outputs), initializer=initializer)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
