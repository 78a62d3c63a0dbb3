"""What the integration tests share."""

import itertools
from collections.abc import Iterator

import pytest

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
