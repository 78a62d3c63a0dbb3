"""Cold start: from a process's start until a large model is ready, its files in a store behind a slow link.

Beside the floor that nothing could beat: the bytes at the link's speed, or the runtime's import, whichever is longer.
The model is real: one ONNX file, and its weights in a second one.
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
MODEL = "large"
_WIDTH = 4096  # 64 MiB for each layer
_LAYER_MIB = _WIDTH * _WIDTH * 4 // (1024 * 1024)
_WEIGHTS = "weights.bin"
_CONFIG = f"""
backend: "onnxruntime"
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: {_WIDTH} }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: {_WIDTH} }}
"""
_IMPORT = "import time; begun_s = time.perf_counter(); import onnxruntime; print(time.perf_counter() - begun_s)"


def measure(bench: Bench) -> None:
    """cold_start_*: nothing cached by us; the files of Python and of the runtime are in the kernel's memory."""
    layers = max(bench.rows(FULL_MIB) // _LAYER_MIB, 1)
    with s3_server(bench.directory, bench.console) as url:
        size_bytes = _put_model(url, bench.directory / "source", layers)
        with slow_link(url, bytes_s=LINK_BYTES_S) as link_url:

            def one_round() -> dict[str, float]:
                import_s = float(_run([sys.executable, "-c", _IMPORT], os.environ.copy())[1])
                cache = bench.directory / "cache"
                took_s, phases = _run(
                    [sys.executable, "-m", "tests.benchmarks.loader", f"s3://{BUCKET}", MODEL, str(cache)],
                    environment(link_url),
                )
                shutil.rmtree(cache)
                os.sync()
                bench.console.print(f"  {phases.strip()}; import alone {import_s:.2f} s", highlight=False)
                return {
                    "cold_start_s": took_s,
                    "cold_start_floor_s": max(size_bytes / LINK_BYTES_S, import_s),
                }

            bench.repeat(one_round)


def _put_model(url: str, source: Path, layers: int) -> int:
    """A chain of matrix products and sums, in a bucket; its bytes."""
    source.mkdir()
    rng = np.random.default_rng(0)
    tensors, nodes = [], []
    with (source / _WEIGHTS).open("wb") as weights:
        for number in range(layers):
            tensors.append(_outside(f"weight{number}", offset=weights.tell()))
            weights.write(rng.random(_WIDTH * _WIDTH, np.float32).tobytes())
            last = number == layers - 1
            inputs = [f"hidden{number}" if number else "INPUT0", f"weight{number}"]
            nodes.append(helper.make_node("MatMul", inputs, ["OUTPUT0" if last else f"hidden{number + 1}"]))
    shape: list[str | int | None] = ["batch", _WIDTH]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("INPUT0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("OUTPUT0", TensorProto.FLOAT, shape)],
        initializer=tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save_model(model, source / "model.onnx")
    client = s3_client(url)
    client.create_bucket(Bucket=BUCKET)
    client.put_object(Bucket=BUCKET, Key=f"{MODEL}/config.pbtxt", Body=_CONFIG.encode())
    for path in source.iterdir():
        client.upload_file(str(path), BUCKET, f"{MODEL}/1/{path.name}")
    size_bytes = sum(path.stat().st_size for path in source.iterdir())
    shutil.rmtree(source)
    os.sync()
    return size_bytes


def _outside(name: str, *, offset: int) -> onnx.TensorProto:
    """A matrix whose values are in the weights' file."""
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[_WIDTH, _WIDTH])
    tensor.data_location = TensorProto.EXTERNAL
    values = {"location": _WEIGHTS, "offset": offset, "length": _WIDTH * _WIDTH * 4}
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
