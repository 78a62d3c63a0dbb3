"""Cold start: from a process's start until a large model is ready, its files in a store behind a slow link.

Beside the floor that nothing could beat: the bytes at the link's speed, or the runtime's import, whichever is longer.
The models are real: one ONNX file, and its weights in a second one.
Alone: `python -m tests.benchmarks.engine_cold_start [--mib N]`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.benchmarks.bench import Bench
from tests.benchmarks.engine_download import BUCKET, FULL_MIB, run_alone, s3_client
from tests.benchmarks.s3_server import environment, s3_server
from tests.benchmarks.slow_link import slow_link
from tests.benchmarks.stack import BenchmarkError

LINK_BYTES_S = 200e6
_WIDTH = 4096  # 64 MiB for each layer
_LAYER_MIB = _WIDTH * _WIDTH * 4 // (1024 * 1024)
_WEIGHTS = "weights.bin"
_CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input {{ name: "INPUT0" data_type: {datatype} }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {dims} }}
"""
_CONFIGS = {
    "table": _CONFIG.format(datatype="TYPE_INT64 dims: 1", dims=f"[1, {_WIDTH}]"),
    "chain": _CONFIG.format(datatype=f"TYPE_FP32 dims: {_WIDTH}", dims=_WIDTH),
}
_IMPORT = "import time; begun_s = time.perf_counter(); import onnxruntime; print(time.perf_counter() - begun_s)"


def measure(bench: Bench) -> None:
    """cold_start_*: nothing cached by us; the files of Python and of the runtime are in the kernel's memory.

    Two models of one size. One is a table, whose weights ONNX Runtime uses as they are on disk: cold_start_s. The other
    is a chain of matrix products, whose weights it first copies to another order, on one core: cold_start_packed_s.
    """
    layers = max(bench.rows(FULL_MIB) // _LAYER_MIB, 1)
    with s3_server(bench.directory, bench.console) as url:
        s3_client(url).create_bucket(Bucket=BUCKET)
        size_bytes = _put_model(url, bench.directory / "source", "table", _table(layers), layers)
        _put_model(url, bench.directory / "source", "chain", _chain(layers), layers)
        with slow_link(url, bytes_s=LINK_BYTES_S) as link_url:

            def one_round() -> dict[str, float]:
                import_s = float(_run([sys.executable, "-c", _IMPORT], os.environ.copy())[1])
                return {
                    "cold_start_s": _cold_start_s(bench, link_url, "table"),
                    "cold_start_packed_s": _cold_start_s(bench, link_url, "chain"),
                    "cold_start_floor_s": max(size_bytes / LINK_BYTES_S, import_s),
                }

            bench.repeat(one_round)


def _cold_start_s(bench: Bench, link_url: str, model: str) -> float:
    cache = bench.directory / "cache"
    command = [sys.executable, "-m", "tests.benchmarks.loader", f"s3://{BUCKET}", model, str(cache)]
    took_s, phases = _run(command, environment(link_url))
    shutil.rmtree(cache)
    os.sync()
    bench.console.print(f"    {model}: {phases.strip()}", highlight=False)
    return took_s


def _put_model(url: str, source: Path, name: str, graph: onnx.GraphProto, layers: int) -> int:
    """Put a model and its weights; the bytes of both."""
    source.mkdir()
    rng = np.random.default_rng(0)
    with (source / _WEIGHTS).open("wb") as weights:
        for _ in range(layers):
            weights.write(rng.random(_WIDTH * _WIDTH, np.float32).tobytes())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, source / "model.onnx")
    client = s3_client(url)
    config = _CONFIGS[name].encode()
    client.put_object(Bucket=BUCKET, Key=f"{name}/config.pbtxt", Body=config)
    for path in source.iterdir():
        client.upload_file(str(path), BUCKET, f"{name}/1/{path.name}")
    size_bytes = sum(path.stat().st_size for path in source.iterdir())
    shutil.rmtree(source)
    os.sync()
    return size_bytes


def _table(layers: int) -> onnx.GraphProto:
    """OUTPUT0 = the rows of the weights that INPUT0 names."""
    weights = _outside("weights", rows=layers * _WIDTH, offset=0)
    node = helper.make_node("Gather", ["weights", "INPUT0"], ["OUTPUT0"])
    inputs = [helper.make_tensor_value_info("INPUT0", TensorProto.INT64, ["batch", 1])]
    outputs = [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["batch", 1, _WIDTH])]
    return helper.make_graph([node], "table", inputs, outputs, initializer=[weights])


def _chain(layers: int) -> onnx.GraphProto:
    """OUTPUT0 = INPUT0 times one matrix after the other."""
    tensors, nodes, last = [], [], "INPUT0"
    for number in range(layers):
        tensors.append(_outside(f"weight{number}", rows=_WIDTH, offset=number * _LAYER_MIB * 1024 * 1024))
        result = f"hidden{number}" if number < layers - 1 else "OUTPUT0"
        nodes.append(helper.make_node("MatMul", [last, f"weight{number}"], [result]))
        last = result
    inputs = [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, ["batch", _WIDTH])]
    outputs = [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, ["batch", _WIDTH])]
    return helper.make_graph(nodes, "chain", inputs, outputs, initializer=tensors)


def _outside(name: str, *, rows: int, offset: int) -> onnx.TensorProto:
    """A matrix whose values are in the weights' file."""
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[rows, _WIDTH])
    tensor.data_location = TensorProto.EXTERNAL
    values = {"location": _WEIGHTS, "offset": offset, "length": rows * _WIDTH * 4}
    for key, value in values.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _run(command: list[str], env: dict[str, str]) -> tuple[float, str]:
    """Start a process; the seconds until its first line, and that line."""
    begun_s = time.perf_counter()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took_s = time.perf_counter() - begun_s
        if not line:
            raise BenchmarkError(f"{command[-1]} ended:\n{process.communicate()[1][-1000:]}")
    return took_s, line


if __name__ == "__main__":
    run_alone(measure, "Start a process whose model comes over a link of 200 MB/s.")
