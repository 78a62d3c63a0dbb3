"""The object store: models, claim checks and results, in a directory or in S3, behind one protocol.

It must not know who keeps what in it. S3's client library is imported only when an s3:// url is opened.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from store.directory import DirectoryStore
from store.object_store import (
    DigestMismatch,
    DiskFull,
    KeyRefused,
    ObjectInfo,
    ObjectNotFound,
    ObjectStore,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    StoreUrlError,
)

__all__ = [
    "DigestMismatch",
    "DiskFull",
    "KeyRefused",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "StoreDenied",
    "StoreError",
    "StoreUnavailable",
    "StoreUrlError",
    "open_store",
]

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_REMEDY = "give a directory ('/srv/models', 'file:///srv/models') or a bucket ('s3://bucket/prefix')"


def open_store(url: str) -> ObjectStore:
    """The store at a url: 's3://bucket/prefix', 'file:///absolute/path' or a plain path. No I/O happens yet.

    For S3, credentials, region and AWS_ENDPOINT_URL come from the environment and profile as boto3 reads them.
    Raises StoreUrlError for anything else.
    """
    if not url or "\0" in url:
        raise StoreUrlError(f"store url {url!r} names nothing; {_REMEDY}")
    scheme = _SCHEME.match(url)
    if scheme is None:
        return DirectoryStore(Path(url))
    if url.startswith("file:///"):
        return DirectoryStore(Path(unquote(url.removeprefix("file://"))))
    if url.startswith("s3://"):
        return _open_s3(url)
    raise StoreUrlError(f"store url {url!r} has no form that is known here; {_REMEDY}")


def _open_s3(url: str) -> ObjectStore:
    try:
        from store.s3 import S3Store
    except ModuleNotFoundError as error:
        raise StoreUrlError(
            f"store url {url!r} needs boto3, which is not installed: pip install 'tidegate[s3]'"
        ) from error
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return S3Store(bucket=bucket, prefix=prefix)
