"""S3Server: a real S3 server for benchmarks, versitygw over a directory, in a process of its own.

Built once with Go into the user's cache. Without Go it is moto, which is slow, and said to be so. Knows no benchmark.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from local.guard import GuardedProcess
from local.jars import cache_dir
from tests.benchmarks.stack import BenchmarkError
from tests.s3_process import s3_process

_MODULE = "github.com/versity/versitygw/cmd/versitygw"
_VERSION = "v1.8.0"
_PATIENCE_S = 30.0
_KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark-secret"}


def environment(url: str) -> dict[str, str]:
    """The environment of a process whose S3 is at this url, and nowhere else."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        **_KEYS,
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost",
    }


@contextlib.contextmanager
def s3_server(directory: Path, console: Console) -> Iterator[str]:
    """The endpoint url of a server that keeps its objects below `directory`. Raises BenchmarkError."""
    binary = _versitygw(console)
    if binary is None:
        console.print("  no Go here to build versitygw with: moto serves instead, and is what is measured")
        with s3_process() as (url, _):
            yield url
        return
    data, log_path = directory / "s3", directory / "s3.log"
    data.mkdir()
    url = f"http://127.0.0.1:{_free_port()}"
    address = urlsplit(url).netloc
    command = [str(binary), "--port", address, "--keep-alive", "--quiet", "posix", str(data)]
    keys = {"ROOT_ACCESS_KEY": _KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": _KEYS["AWS_SECRET_ACCESS_KEY"]}
    with log_path.open("wb") as log:
        process = GuardedProcess.start(command, log=log, environment={**os.environ, **keys})
    try:
        _await(address, log_path)
        yield url
    finally:
        process.kill()
        shutil.rmtree(data, ignore_errors=True)


def _versitygw(console: Console) -> Path | None:
    """The server's binary; built the first time. None without Go."""
    binary = cache_dir() / "bin" / f"versitygw-{_VERSION}"
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        return None
    console.print(f"  building versitygw {_VERSION} with Go, once: about a minute")
    building = binary.parent / f".building-{os.getpid()}"
    building.mkdir(parents=True)
    try:
        built = subprocess.run(
            [go, "install", f"{_MODULE}@{_VERSION}"],
            env={**os.environ, "GOBIN": str(building)},
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise BenchmarkError(f"versitygw could not be built: {built.stderr[-1000:]}")
        os.replace(building / "versitygw", binary)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return binary


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _await(address: str, log: Path) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(address, timeout=5)
            connection.request("GET", "/")
            connection.getresponse()
            connection.close()
            return
        time.sleep(0.02)
    raise BenchmarkError(f"the S3 server did not answer; its log ends so:\n{log.read_text(errors='replace')[-1000:]}")
