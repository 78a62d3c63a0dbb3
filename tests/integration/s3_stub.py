"""S3Stub: as much of S3 as reading takes, which counts what it serves and can cut, damage and refuse it.

For what a whole S3 server cannot be made to do. Objects are under one bucket, in memory. It must not know our store.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_PIECE_BYTES = 1 << 18


class S3Stub(ThreadingHTTPServer):
    """Enter it, in a thread of its own, by `with serving(S3Stub())`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.checksums: dict[str, dict[str, str]] = {}  # headers by key, sent when asked for
        self.modified_s = time.time()
        self.requests: list[str] = []  # 'GET key', 'HEAD key', 'LIST prefix'
        self.body_bytes = 0
        self.most_gets = 0
        self.is_away = False
        self.body_of: Callable[[str, int, bytes], bytes] = lambda key, number, body: body
        """What is sent for the n-th GET of a key; a shorter body is a connection that is cut."""
        self.before_get: Callable[[str], object] = lambda key: None
        self._gets: dict[str, int] = {}
        self._open_gets = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def begin_get(self, key: str) -> int:
        """How many GETs of the key there were before this one."""
        with self.lock:
            self._open_gets += 1
            self.most_gets = max(self.most_gets, self._open_gets)
            number = self._gets.get(key, 0)
            self._gets[key] = number + 1
            return number

    def end_get(self) -> None:
        with self.lock:
            self._open_gets -= 1

    def forget(self) -> None:
        """Count from zero."""
        self.requests.clear()
        self.body_bytes = self.most_gets = 0


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3Stub

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    def do_HEAD(self) -> None:
        key = self._key()
        self.server.requests.append(f"HEAD {key}")
        if self._is_refused(key):
            return
        self._answer(200, self._headers_of(key, len(self.server.objects[key])))

    def do_GET(self) -> None:
        key = self._key()
        if not key:
            self._list()
            return
        self.server.requests.append(f"GET {key}")
        if self._is_refused(key):
            return
        number = self.server.begin_get(key)
        try:
            self.server.before_get(key)
            self._send_object(key, number)
        finally:
            self.server.end_get()

    def _send_object(self, key: str, number: int) -> None:
        data = self.server.objects[key]
        asked = self.headers.get("If-Match", "").strip('"')
        if asked and asked != _etag(data):
            self._error(412, "PreconditionFailed")
            return
        start, end, status = 0, len(data), 200
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if span:
            start, end, status = int(span[1]), min(int(span[2]) + 1, len(data)), 206
        headers = self._headers_of(key, end - start)
        if span:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = memoryview(self.server.body_of(key, number, data[start:end]))
        self.close_connection = len(body) < end - start
        self._answer(status, headers)
        for begin in range(0, len(body), _PIECE_BYTES):
            piece = body[begin : begin + _PIECE_BYTES]
            self.wfile.write(piece)
            with self.server.lock:
                self.server.body_bytes += len(piece)

    def _headers_of(self, key: str, length: int) -> dict[str, str]:
        wants_checksum = "x-amz-checksum-mode" in self.headers and "Range" not in self.headers
        return {
            "ETag": f'"{_etag(self.server.objects[key])}"',
            "Last-Modified": formatdate(self.server.modified_s, usegmt=True),
            "Content-Length": str(length),
            **(self.server.checksums.get(key, {}) if wants_checksum else {}),
        }

    def _list(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        self.server.requests.append(f"LIST {prefix}")
        if self._is_refused(None):
            return
        keys = sorted(key for key in self.server.objects if key.startswith(prefix))
        below = {prefix + key.removeprefix(prefix).partition("/")[0] + "/" for key in keys if delimiter and
                 "/" in key.removeprefix(prefix)}  # fmt: skip
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(self.server.modified_s))
        entries = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
            f'<ETag>"{_etag(self.server.objects[key])}"</ETag><Size>{len(self.server.objects[key])}</Size></Contents>'
            for key in keys
            if not (delimiter and "/" in key.removeprefix(prefix))
        ] + [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(below)]
        body = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>"
        ).encode()
        self._answer(200, {"Content-Type": "application/xml", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _is_refused(self, key: str | None) -> bool:
        if self.server.is_away:
            self._error(500, "InternalError")
        elif key is not None and key not in self.server.objects:
            self._error(404, "NoSuchKey")
        else:
            return False
        return True

    def _error(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code></Error>".encode() if self.command != "HEAD" else b""
        self._answer(status, {"Content-Type": "application/xml", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _answer(self, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


_etags: dict[int, tuple[bytes, str]] = {}


def _etag(data: bytes) -> str:
    """Of the content. Large objects of a test are asked for it often."""
    known = _etags.get(id(data))
    if known is None or known[0] is not data:
        known = _etags[id(data)] = (data, hashlib.sha1(data).hexdigest()[:32])
    return known[1]
