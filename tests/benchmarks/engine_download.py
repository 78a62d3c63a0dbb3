"""Downloads: one large object from a real S3 server, by boto3's own download_file and by ours, each in its own process.

Alone: `python -m tests.benchmarks.engine_download [--mib N]`.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
from rich.console import Console

from tests.benchmarks.bench import FULL_RUN_S, Bench
from tests.benchmarks.s3_server import environment, s3_server
from tests.benchmarks.stack import BenchmarkError

FULL_MIB = 1024
BUCKET, _KEY = "benchmark", "model/1/weights.bin"
_MIB = 1024 * 1024
# Each prints the seconds that the download alone took, client built and connections not: both pay for those.
_DEFAULT = """
import boto3, sys, time
client = boto3.client("s3")
begun_s = time.perf_counter()
client.download_file({bucket!r}, {key!r}, sys.argv[1])
print(time.perf_counter() - begun_s)
"""
_OURS = """
import sys, time
from pathlib import Path
from store import open_store
store = open_store("s3://{bucket}")
store.head({key!r})
begun_s = time.perf_counter()
store.download({key!r}, Path(sys.argv[1]))
print(time.perf_counter() - begun_s)
"""


def measure(bench: Bench) -> None:
    """download_*: ours is synced to disk when it ends, as it promises; boto3's is not."""
    with s3_server(bench.directory, bench.console) as url:
        put_object(url, _KEY, bench.rows(FULL_MIB) * _MIB)

        def one_round() -> dict[str, float]:
            return {
                "download_default_s": _seconds(_DEFAULT, url, bench.directory),
                "download_s": _seconds(_OURS, url, bench.directory),
            }

        bench.repeat(one_round)


def put_object(url: str, key: str, size_bytes: int) -> None:
    """Put an object of bytes that do not repeat within a part."""
    client = s3_client(url)
    client.create_bucket(Bucket=BUCKET)
    client.upload_fileobj(_Noise(size_bytes), BUCKET, key)


def s3_client(url: str) -> Any:
    """A client of that server alone."""
    keys = environment(url)
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=keys["AWS_DEFAULT_REGION"],
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
    )


class _Noise(io.RawIOBase):
    """So many bytes to read."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._noise = os.urandom(8 * _MIB)

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        count = min(self._left_bytes, len(self._noise), count if count >= 0 else self._left_bytes)
        self._left_bytes -= count
        return self._noise[:count]


def _seconds(script: str, url: str, directory: Path) -> float:
    target = directory / "downloaded"
    done = subprocess.run(
        [sys.executable, "-c", script.format(bucket=BUCKET, key=_KEY), str(target)],
        env=environment(url),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"a download failed:\n{done.stderr[-1000:]}")
    target.unlink()
    os.sync()  # so that neither pays for what the other one left to the kernel
    return float(done.stdout)


def run_alone(measure: Callable[[Bench], None], description: str) -> None:
    """A benchmark of bytes without the others, its size an option; one line per figure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mib", type=int, default=FULL_MIB, help="size of the object (default: %(default)s)")
    run_s = max(parser.parse_args().mib * FULL_RUN_S // FULL_MIB, 1)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        bench = Bench(bootstrap="", broker_pid=None, directory=Path(directory), run_s=run_s, console=console)
        measure(bench)
    for name, value in bench.medians().items():
        console.print(f"{name} {value:.3f}", highlight=False)


if __name__ == "__main__":
    run_alone(measure, "Download one object by boto3's download_file and by ours.")
