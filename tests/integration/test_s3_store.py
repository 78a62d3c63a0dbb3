"""The S3 store against a server over HTTP: the contract of all stores, and what networks and other writers do."""

import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from store import (
    ObjectNotFound,
    ObjectStore,
    StoreDenied,
    StoreError,
    StoreUnavailable,
    open_store,
)
from store.ranged_download import MAX_RESUMES
from tests.s3_process import lead_boto3_to, make_bucket, s3_process
from tests.store_contract import StoreContract


class TestS3Bucket(StoreContract):
    @pytest.fixture
    def store(self, s3_bucket_url: str) -> ObjectStore:
        return open_store(s3_bucket_url)


class TestS3Prefix(StoreContract):
    @pytest.fixture
    def store(self, s3_bucket_url: str) -> ObjectStore:
        # Neighbours whose keys begin like the prefix.
        open_store(s3_bucket_url).put("team/models-old/a", b"x")
        open_store(s3_bucket_url).put("team/models", b"x")
        return open_store(f"{s3_bucket_url}/team/models/")


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to an S3 server, and spoils the answers that `faults` says.

    A fault is taken per request of its method, in order: '' none; 'lost' passed on but not answered;
    '503 <code>' answered so and not passed on; 'replace' passed on after `replace` was called; or a number: the body
    ends after so many bytes.
    """

    daemon_threads = True

    def __init__(self, upstream_url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Proxied)
        self.upstream = urlsplit(upstream_url).netloc
        self.faults: dict[str, list[str]] = {}
        self.replace: Callable[[], object] = lambda: None
        self.seen: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Proxied(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, {name.lower(): value for name, value in self.headers.items()}))
        faults = self.server.faults.get(self.command, [])
        fault = faults.pop(0) if faults else ""
        if (fault[:3] in {"503", "403", "409"} and not fault.isdecimal()) or fault in {"503", "403"}:
            status, _, code = fault.partition(" ")
            answer = f"<Error><Code>{code or 'ServiceUnavailable'}</Code></Error>".encode()
            self._answer(int(status), {"Content-Type": "application/xml", "Content-Length": str(len(answer))}, answer)
            return
        if fault == "replace":
            self.server.replace()
            fault = ""
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=30)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers.items()))
            response = upstream.getresponse()
            data, headers = response.read(), dict(response.getheaders())
        finally:
            upstream.close()
        headers.pop("Connection", None)
        if fault == "lost":
            self.close_connection = True
        elif fault:
            self.close_connection = True
            self._answer(response.status, headers, data[: int(fault)])
        else:
            self._answer(response.status, headers, data)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = _pass_on  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3_server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxied(proxy: FaultyProxy, s3_bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store whose requests go through the proxy."""
    lead_boto3_to(proxy.url, monkeypatch)
    return open_store(s3_bucket_url)


def test_directory_markers_are_skipped(s3_server: str, s3_bucket_url: str) -> None:
    client = boto3.client("s3", endpoint_url=s3_server)
    for key in ("m/", "m/1/", "m/1/x", "m/empty/", "m/1//y", "m/../../etc/x"):
        client.put_object(Bucket=s3_bucket_url.removeprefix("s3://"), Key=key, Body=b"")
    store = open_store(s3_bucket_url)
    assert [info.key for info in store.list("")] == ["m/1/x"]
    assert [info.key for info in store.list("m")] == ["m/1/x"]
    assert store.list_children("m") == ["1/", "empty/"]
    assert store.list_children("m/1") == ["x"]
    assert store.list_children("") == ["m/"]


def test_listing_goes_on_over_pages(s3_bucket_url: str) -> None:
    store = open_store(s3_bucket_url)
    keys = [f"jobs/{number:04}/outcome" for number in range(1005)]
    for key in keys:
        store.put(key, b"")
    assert [info.key for info in store.list("jobs")] == keys
    assert store.list_children("jobs") == [key.split("/")[1] + "/" for key in keys]


def test_stopped_server_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_process() as (endpoint_url, process):
        lead_boto3_to(endpoint_url, monkeypatch)
        make_bucket(endpoint_url, "bucket")
        store = open_store("s3://bucket")
        store.put("k", b"x")
        process.kill()
        process.wait()
        with pytest.raises(StoreUnavailable, match="cannot read 'k'") as raised:
            store.get("k")
        assert raised.value.retryable
        assert raised.value.__cause__ is not None
        with pytest.raises(StoreUnavailable):
            store.put("k", b"y", if_absent=True)
        with pytest.raises(StoreUnavailable):
            list(store.list(""))
        with pytest.raises(StoreUnavailable):
            store.download("k", tmp_path / "file")
        assert list(tmp_path.iterdir()) == []


def test_overloaded_server_is_asked_again_then_unavailable(proxy: FaultyProxy, proxied: ObjectStore) -> None:
    proxied.put("k", b"x")
    proxy.faults["GET"] = ["503 SlowDown"]
    assert proxied.get("k") == b"x"
    proxy.faults["GET"] = ["503 SlowDown"] * 4
    with pytest.raises(StoreUnavailable):
        proxied.get("k")
    assert proxy.faults["GET"] == []


def test_refused_credentials_are_denied_at_once(proxy: FaultyProxy, proxied: ObjectStore) -> None:
    proxy.faults["GET"] = ["403 AccessDenied"]
    with pytest.raises(StoreDenied, match="AccessDenied") as raised:
        proxied.get("k")
    assert not raised.value.retryable
    assert len(proxy.seen) == 1


def test_missing_credentials_are_denied(s3_bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID"):
        open_store(s3_bucket_url).get("k")


def test_missing_bucket_is_an_error_and_not_an_absent_object(s3_server: str) -> None:
    store = open_store("s3://no-such-bucket")
    for call in (lambda: store.get("k"), lambda: store.put("k", b"x"), lambda: list(store.list(""))):
        with pytest.raises(StoreError, match="NoSuchBucket") as raised:
            call()
        assert not isinstance(raised.value, ObjectNotFound)
        assert not raised.value.retryable


def test_download_goes_on_where_it_broke(proxy: FaultyProxy, proxied: ObjectStore, tmp_path: Path) -> None:
    data = bytes(range(251)) * 20_000
    proxied.put("k", data)
    etag = proxied.head("k").etag
    proxy.seen.clear()
    proxy.faults["GET"] = ["2000000", "1500000"]
    told: list[int] = []
    proxied.download("k", tmp_path / "file", on_progress=told.append)
    assert (tmp_path / "file").read_bytes() == data
    assert told == sorted(set(told))
    assert told[-1] == len(data)
    resumed = [headers for method, headers in proxy.seen if "range" in headers]
    assert len(resumed) == 2
    assert all(headers["if-match"].strip('"') == etag for headers in resumed)
    assert [headers["range"] for headers in resumed] == ["bytes=2000000-5019999", "bytes=3500000-5019999"]


def test_download_that_stays_truncated_publishes_nothing(
    proxy: FaultyProxy, proxied: ObjectStore, tmp_path: Path
) -> None:
    proxied.put("k", bytes(2_000_000))
    (tmp_path / "file").write_bytes(b"old")
    proxy.faults["GET"] = ["1000"] * (MAX_RESUMES + 1)
    with pytest.raises(StoreUnavailable, match="cannot read 'k'"):
        proxied.download("k", tmp_path / "file")
    assert proxy.faults["GET"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_truncated_get_is_unavailable(proxy: FaultyProxy, proxied: ObjectStore) -> None:
    proxied.put("k", bytes(100_000))
    proxy.faults["GET"] = ["1000"]
    with pytest.raises(StoreUnavailable):
        proxied.get("k")


def test_object_replaced_while_downloaded_is_not_published(
    proxy: FaultyProxy, proxied: ObjectStore, tmp_path: Path
) -> None:
    proxied.put("k", bytes(3_000_000))
    proxy.faults["GET"] = ["2000000", "replace"]
    proxy.replace = lambda: proxied.put("k", b"\1" * 3_000_000)
    with pytest.raises(StoreUnavailable, match="changed while it was read"):
        proxied.download("k", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_first_put_is_true_though_its_answer_was_lost(proxy: FaultyProxy, proxied: ObjectStore) -> None:
    proxy.faults["PUT"] = ["lost"]
    assert proxied.put("k", b"mine", if_absent=True) is True
    assert [method for method, _ in proxy.seen] == ["PUT", "PUT", "GET"]
    proxy.faults["PUT"] = ["lost"]
    assert proxied.put("k", b"other", if_absent=True) is False
    assert proxied.get("k") == b"mine"


def test_conflicting_put_is_tried_again_then_decided_by_head(proxy: FaultyProxy, proxied: ObjectStore) -> None:
    conflict = "409 ConditionalRequestConflict"
    proxy.faults["PUT"] = [conflict]
    assert proxied.put("k", b"mine", if_absent=True) is True
    proxy.faults["PUT"] = [conflict] * 4
    assert proxied.put("k", b"other", if_absent=True) is False
    proxy.faults["PUT"] = [conflict] * 4
    with pytest.raises(StoreUnavailable):
        proxied.put("absent", b"x", if_absent=True)


def test_custom_endpoint_is_spoken_to_plainly(proxy: FaultyProxy, proxied: ObjectStore) -> None:
    # Checksum trailers and bucket host names are what other makers' servers refuse.
    proxied.put("k", b"x")
    proxied.get("k")
    for _, headers in proxy.seen:
        assert headers["authorization"].startswith("AWS4-HMAC-SHA256")
        assert headers["host"] == urlsplit(proxy.url).netloc
        assert not [name for name in headers if "checksum" in name or name in {"x-amz-trailer", "expect"}]
