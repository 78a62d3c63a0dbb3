"""Models in an S3Stub, fetched as processes do that were started just now, and a look at what they leave on disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from store import open_store
from tests.integration.s3_stub import BUCKET, S3Stub
from workers.repository import FetchedVersion, ModelRepository

URL = f"s3://{BUCKET}"
MB = 1_000_000
CONFIG = b"""
backend: "onnxruntime"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
"""


def add(stub: S3Stub, model: str, size_bytes: int = MB, **files: bytes) -> bytes:
    """A model of one version; gives its largest file."""
    data = os.urandom(min(size_bytes, 64 * 1024)) * (size_bytes // min(size_bytes, 64 * 1024))
    stub.objects[f"{model}/config.pbtxt"] = CONFIG
    stub.objects[f"{model}/1/model.onnx"] = data
    for name, content in files.items():
        stub.objects[f"{model}/1/{name}"] = content
    return data


def fetch(cache: Path, model: str = "m", *, cache_bytes: int = 0) -> FetchedVersion:
    """As a process does that was started just now."""
    return ModelRepository(open_store(URL), cache=cache, cache_bytes=cache_bytes).fetch(ModelRef(model, "1"))


def cause_of(model: str, cache: Path, *, cache_bytes: int = 0) -> BaseException | None:
    with pytest.raises(InferenceError) as raised:
        fetch(cache, model, cache_bytes=cache_bytes)
    assert raised.value.code is ErrorCode.MODEL_LOAD_FAILED
    return raised.value.__cause__


def entries(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.name not in {".lock", "listings"}}


def bytes_in(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


FETCH = """
import sys
from pathlib import Path
from schemas.model import ModelRef
from store import open_store
from workers.repository import ModelRepository
repository = ModelRepository(open_store("s3://bucket"), cache=Path(sys.argv[1]), cache_bytes=int(sys.argv[2]))
fetched = repository.fetch(ModelRef("m", "1"))
print(fetched.path, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def fetcher(cache: Path, *, cache_bytes: int = 0, script: str = FETCH) -> Iterator[subprocess.Popen[str]]:
    """A process that fetches the model, tells where it is, and holds it until it is closed."""
    command = [sys.executable, "-c", script, str(cache), str(cache_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
