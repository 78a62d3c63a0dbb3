"""An object store in an S3 bucket, or a prefix of one. The only file that imports boto3.

It must not know what anyone keeps in it, nor how a url is read.
"""

import base64
import builtins
import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
)
from botocore.exceptions import ConnectionError as NotConnectedError  # not the builtin of that name

from store.digest import Digest
from store.object_store import (
    DigestMismatch,
    KeyRefused,
    ObjectInfo,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    StoreUrlError,
    check_key,
    check_prefix,
    is_key,
)
from store.published_file import file_beside, publish
from store.ranged_download import PART_BYTES, download_ranges

MAX_CONFLICTS = 4
_PASSING_ERRORS = (
    NotConnectedError,
    HTTPClientError,
    IncompleteReadError,
    FlexibleChecksumError,
    CredentialRetrievalError,
)
_BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}")
_PASSING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestTimeout", "RequestLimitExceeded"}
_DENIED_CODES = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
_CONFIG = Config(
    signature_version="s3v4",
    connect_timeout=5,
    read_timeout=30,
    retries={"mode": "standard", "total_max_attempts": 4},
    max_pool_connections=32,
    tcp_keepalive=True,
)
# Other makers' servers: bucket names are rarely host names there, and several refuse the checksums AWS asks for.
_CUSTOM_ENDPOINT_CONFIG = Config(
    s3={"addressing_style": "path"},
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


class S3Store:
    """An ObjectStore in `bucket`, below `prefix` ('' for the whole bucket). The bucket must exist.

    The client is built by the first call that needs it, then shared by all threads.
    """

    def __init__(self, *, bucket: str, prefix: str = "") -> None:
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        if not _BUCKET.fullmatch(bucket):
            raise StoreUrlError(f"store url {self.url!r} has no valid bucket name; give 's3://bucket/prefix'")
        try:
            self._base = check_prefix(prefix)
        except KeyRefused as error:
            raise StoreUrlError(f"store url {self.url!r} has a bad prefix; give 's3://bucket/prefix'") from error
        self._bucket = bucket
        self._client_lock = threading.Lock()
        self._client: Any = None  # boto3 clients have no types

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        address = self._address(key)
        with _translated("read", key):
            response = self._connected().get_object(**address)
            with contextlib.closing(response["Body"]) as body:
                data: bytes = body.read()
                return data

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        address = self._address(key)
        with _translated("look at", key):
            return _info_of(key, self._connected().head_object(**address))

    def put(self, key: str, data: bytes | bytearray | memoryview, *, if_absent: bool = False) -> bool:
        """See ObjectStore.put."""
        request = {**self._address(key), "Body": bytes(data)}
        with _translated("write", key):
            if if_absent:
                return self._put_if_absent(key, request)
            self._connected().put_object(**request)
            return True

    def _put_if_absent(self, key: str, request: dict[str, Any]) -> bool:
        for _ in range(MAX_CONFLICTS):
            try:
                self._connected().put_object(**request, IfNoneMatch="*")
                return True
            except ClientError as error:
                status = _status_of(error)
                if status == 412 and error.response["ResponseMetadata"].get("RetryAttempts"):
                    # The first attempt may have been written and only its answer lost; then "taken" means by us.
                    with contextlib.suppress(ObjectNotFound):
                        return bool(self.get(key) == request["Body"])
                    continue
                if status == 412:
                    return False
                if status != 409:  # 409: someone writes or deletes this key right now
                    raise
        try:
            self.head(key)
        except ObjectNotFound as error:
            raise StoreUnavailable(f"cannot write {key!r}: others kept writing and deleting it meanwhile") from error
        return False

    def delete(self, key: str) -> None:
        """See ObjectStore.delete."""
        address = self._address(key)
        with _translated("delete", key):
            self._connected().delete_object(**address)

    def presign(self, key: str, *, expires_s: int, content_type: str = "") -> str | None:
        """See ObjectStore.presign."""
        request = self._address(key) | ({"ResponseContentType": content_type} if content_type else {})
        with _translated("sign", key):
            url: str = self._connected().generate_presigned_url("get_object", Params=request, ExpiresIn=expires_s)
            return url

    def list_children(self, prefix: str) -> builtins.list[str]:
        """See ObjectStore.list_children."""
        children: builtins.list[str] = []
        below = self._base + check_prefix(prefix)
        for page in self._pages(below, Delimiter="/"):
            children += [entry["Key"].removeprefix(below) for entry in page.get("Contents", ())]
            children += [entry["Prefix"].removeprefix(below) for entry in page.get("CommonPrefixes", ())]
        return sorted(name for name in children if is_key(name.removesuffix("/")))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore.list."""
        return self._walk(self._base + check_prefix(prefix))

    def download(
        self,
        key: str,
        path: Path,
        *,
        expected: ObjectInfo | None = None,
        sha256: bytes = b"",
        on_progress: Callable[[int], None] | None = None,
    ) -> ObjectInfo:
        """See ObjectStore.download. An `expected` object of one part costs one request."""
        self._address(key)
        info, digest = expected, Digest("sha256", sha256) if sha256 else None
        if info is None or (digest is None and info.size_bytes > PART_BYTES):
            info, told = self._head_with_digest(key, expected)
            digest = digest or told
        target = os.path.abspath(path)
        with file_beside(target) as (file, temporary):
            try:
                open_range = partial(self._open_range, info)
                download_ranges(file, info.size_bytes, open_range, digest=digest, on_progress=on_progress)
            except DigestMismatch as error:
                raise DigestMismatch(f"object {key!r} is damaged: {error}") from error
            except StoreUnavailable as error:
                raise StoreUnavailable(f"cannot read {key!r}: {error}") from error
        publish(temporary, target)
        return info

    def _head_with_digest(self, key: str, expected: ObjectInfo | None) -> tuple[ObjectInfo, Digest | None]:
        """What is known of an object, and the digest of the whole of it, if the store knows one."""
        with _translated("read", key):
            answer = self._connected().head_object(**self._address(key), ChecksumMode="ENABLED")
        info = _info_of(key, answer)
        if expected and (info.etag, info.size_bytes) != (expected.etag, expected.size_bytes):
            raise StoreUnavailable(f"object {key!r} was replaced since it was listed")
        return info, _digest_of(answer)

    def _open_range(self, info: ObjectInfo, start: int, end: int) -> "_Body":
        """The answer that holds these bytes of a version of an object."""
        request = {**self._address(info.key), "IfMatch": f'"{info.etag}"'}
        if (start, end) == (0, info.size_bytes):
            request["ChecksumMode"] = "ENABLED"  # boto3 compares it, if there is one, where the body ends
        else:
            request["Range"] = f"bytes={start}-{end - 1}"
        with _translated("read", info.key):
            response = self._connected().get_object(**request)
        body = _Body(info.key, response["Body"])
        if response["ETag"].strip('"') != info.etag:  # not every server heeds If-Match
            body.close()
            raise StoreUnavailable(f"object {info.key!r} changed while it was read")
        if response["ContentLength"] != end - start or not _begins_at(response, start):
            body.close()
            raise StoreError(f"cannot read {info.key!r}: the server does not answer ranges")
        return body

    def _walk(self, below: str) -> Iterator[ObjectInfo]:
        for page in self._pages(below):
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self._base)
                if is_key(key):
                    yield _info_of(key, entry)

    def _pages(self, below: str, **options: str) -> Iterator[dict[str, Any]]:
        with _translated("list", below):
            paginator = self._connected().get_paginator("list_objects_v2")
            yield from paginator.paginate(Bucket=self._bucket, Prefix=below, **options)

    def _address(self, key: str) -> dict[str, str]:
        check_key(key)
        return {"Bucket": self._bucket, "Key": self._base + key}

    def _connected(self) -> Any:
        """The client. Its kind of endpoint is known only once it is built, for it may come from a profile."""
        with self._client_lock:
            if self._client is None:
                session = boto3.session.Session()
                client = session.client("s3", config=_CONFIG)
                host = urlsplit(client.meta.endpoint_url).hostname or ""
                if not host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws")):
                    client = session.client("s3", config=_CONFIG.merge(_CUSTOM_ENDPOINT_CONFIG))
                client.meta.events.register("before-sign.s3.PutObject", _send_body_at_once)
                self._client = client
            return self._client


class _Body:
    """The body of an answer, with the store's errors."""

    def __init__(self, key: str, body: Any) -> None:
        self._key = key
        self._body = body

    def readinto(self, buffer: memoryview) -> int:
        """See ranged_download.Body."""
        try:
            with _translated("read", self._key):
                count: int = self._body.readinto(buffer)
                return count
        except StoreUnavailable as error:
            if isinstance(error.__cause__, FlexibleChecksumError):
                raise DigestMismatch(f"{error}") from error
            raise

    def close(self) -> None:
        """See ranged_download.Body."""
        self._body.close()


def _begins_at(response: dict[str, Any], start: int) -> bool:
    return start == 0 or response.get("ContentRange", "").startswith(f"bytes {start}-")


def _digest_of(answer: dict[str, Any]) -> Digest | None:
    """The digest of a whole object. One of its parts' digests, as of most uploads in parts, says nothing to us.

    Nor does an etag: it is an MD5 only where server, encryption and upload are known.
    """
    if answer.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    with contextlib.suppress(ValueError):  # '<digest>-<number of parts>', from servers that leave out the type
        if "ChecksumSHA256" in answer:
            return Digest("sha256", base64.b64decode(answer["ChecksumSHA256"], validate=True))
        if "ChecksumCRC32" in answer:
            return Digest("crc32", base64.b64decode(answer["ChecksumCRC32"], validate=True))
    return None


def _send_body_at_once(request: Any, **_: Any) -> None:
    """Send no Expect header: waiting for '100 Continue' is a round trip per result, or a second at a server without."""
    del request.headers["Expect"]  # an absent one is fine


def _info_of(key: str, answer: dict[str, Any]) -> ObjectInfo:
    """What is known of an object, from the answer to GET or HEAD, or from an entry of a listing."""
    size_bytes = answer["Size"] if "Size" in answer else answer["ContentLength"]
    modified_ms = int(answer["LastModified"].timestamp() * 1000)
    return ObjectInfo(key=key, size_bytes=size_bytes, etag=answer["ETag"].strip('"'), modified_ms=modified_ms)


def _status_of(error: ClientError) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


@contextmanager
def _translated(doing: str, key: str) -> Iterator[None]:
    """Turn boto3's errors into the store's."""
    try:
        yield
    except ClientError as error:
        code, status = error.response.get("Error", {}).get("Code", ""), _status_of(error)
        said = f"cannot {doing} {key!r}: {error}"
        if status == 404 and code != "NoSuchBucket":
            raise ObjectNotFound(f"no object at key {key!r}") from error
        if status >= 500 or status == 429 or code in _PASSING_CODES:
            raise StoreUnavailable(said) from error
        if status == 412:  # only a download sends a condition that is not answered where it is sent
            raise StoreUnavailable(f"object {key!r} changed while it was read") from error
        if status in {401, 403} or code in _DENIED_CODES:
            raise StoreDenied(said) from error
        raise StoreError(said) from error
    except NoCredentialsError as error:
        raise StoreDenied(f"cannot {doing} {key!r}: {error}; set AWS_ACCESS_KEY_ID or a profile or role") from error
    except _PASSING_ERRORS as error:
        raise StoreUnavailable(f"cannot {doing} {key!r}: {error}") from error
    except BotoCoreError as error:
        raise StoreError(f"cannot {doing} {key!r}: {error}") from error
