"""What the integration tests share."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.s3_stub import S3Stub
from tests.s3_process import lead_boto3_to, make_bucket, s3_process

_bucket_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint url of an S3 server over HTTP; the environment of tests and children leads boto3 there."""
    with s3_process() as (endpoint_url, _), pytest.MonkeyPatch.context() as monkeypatch:
        lead_boto3_to(endpoint_url, monkeypatch)
        yield endpoint_url


@pytest.fixture
def s3_bucket_url(s3_server: str) -> str:
    """The url of a new, empty bucket ('s3://...')."""
    bucket = f"bucket-{next(_bucket_numbers)}"
    make_bucket(s3_server, bucket)
    return f"s3://{bucket}"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Stub]:
    """An S3 server that counts and misbehaves; boto3 is led there."""
    with S3Stub() as server:
        lead_boto3_to(server.url, monkeypatch)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The directory of a node cache, not made yet."""
    return tmp_path / "cache"
