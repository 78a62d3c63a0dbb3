"""An S3 server over HTTP in a process of its own, and an environment that leads boto3 to it and nowhere else."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

# The server picks its port and says it once it listens; it ends with its standard input, so also with its parent.
_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_process() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the server; its endpoint url and its process, which is stopped at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line per request
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, f"the S3 server ended with {process.wait()}"
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()


def lead_boto3_to(endpoint_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what boto3 reads, here and in child processes, so that nobody's own profile or proxy is used."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def make_bucket(endpoint_url: str, bucket: str) -> None:
    """Make a bucket; by plain HTTP, as building a client takes longer than most tests."""
    httpx.put(f"{endpoint_url}/{bucket}", trust_env=False).raise_for_status()
