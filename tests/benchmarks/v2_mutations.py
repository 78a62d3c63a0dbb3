"""Damaged requests: well-formed v2 requests, and what is left of them after some random damage. Pure: seeded, no I/O.

What comes out is still HTTP: a path, headers without line breaks, a body of the length that it has.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.benchmarks.damage import cut, flip, grow

_ROW_FLOATS = 16
_NUMBERS = (0, -1, 1, 2, 255, 65535, 2**31 - 1, -(2**31), 2**32, 2**53, 2**63, -(2**63) - 1, 10**40, 1.5, -0.0, 1e308)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    [None],
    {"a": {"b": [1]}},
    "\ud800",
    "\x00",
    *_NUMBERS,
)
_DATATYPES = ("BOOL", "UINT8", "INT64", "FP16", "BF16", "FP64", "BYTES", "FP32", "fp32", "")
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("inference-header-content-length", ("0", "1", "-1", "99999999999", "1e3", "", "٣", "18446744073709551616")),
    ("content-encoding", ("gzip", "deflate", "br", "identity", "gzip,gzip", "")),
    ("accept-encoding", ("gzip", "deflate;q=0", "*;q=nan", "gzip;q=" + "9" * 400, ",,,", "")),
    ("accept", ("application/octet-stream", "text/html", "*/*;q=0", "a" * 2000, "/", "")),
    ("prefer", ("wait=0", "wait=1", "wait=99999999999", "respond-async, wait=0", 'wait="1"', "wait=-1", ",=;", "")),
    (
        "traceparent",
        ("00-" + "0" * 32 + "-" + "0" * 16 + "-00", "ff-1-2-3", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", ""),
    ),
    ("content-type", ("text/plain", "application/json; charset=utf-16", "multipart/form-data", "")),
    ("idempotency-key", ("k", "", "x" * 5000, "\x7f", '"quoted"')),
    ("tidegate-priority", ("1", "-1", "99999999999", "x", "")),
    ("tidegate-deadline-ms", ("1", "0", "-5", "1" * 30, "soon")),
    ("tidegate-timeout-ms", ("1", "0", "-5", "1" * 30, "soon")),
    ("tidegate-execution-timeout-ms", ("1", "0", "1" * 30, "x")),
    ("tidegate-webhook", ("http://127.0.0.1/", "file:///etc/passwd", "https://", "x", "https://[::1]:99999/")),
    ("x-request-id", ("mine", "x" * 5000, "\x01", "")),
    ("authorization", ("Bearer x", "Basic !!", "Bearer " + "y" * 3000, "")),
)


class DamagedRequest(msgspec.Struct, frozen=True):
    """A POST."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def damaged_requests(seed: int, model: str) -> Iterator[DamagedRequest]:
    """For ever: requests to a model with one input INPUT0, FP32 [16]. The same for the same seed."""
    rng = random.Random(seed)
    while True:
        yield _damaged(rng, model)


def _damaged(rng: random.Random, model: str) -> DamagedRequest:
    head, raw = _well_formed(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        _damage_document(rng, head)
    body = json.dumps(head).encode("utf-8", "surrogatepass")
    headers = {"inference-header-content-length": str(len(body))} if raw else {}
    body += raw
    for _ in range(rng.choice((0, 0, 1, 2))):
        body = rng.choice(_BODY_DAMAGES)(rng, body)
    if rng.random() < 0.15:
        encode: Callable[[bytes], bytes] = rng.choice((gzip.compress, zlib.compress))
        body = encode(body)
        headers["content-encoding"] = rng.choice(("gzip", "deflate"))
        if rng.random() < 0.5:
            body = rng.choice(_BODY_DAMAGES)(rng, body)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        name, values = rng.choice(_HEADERS)
        headers[name] = rng.choice(values)
    versions = ("/versions/1", "/versions/2", "/versions/", "/versions/%00", "/versions/1/versions/1")
    version = rng.choice(versions) if rng.random() < 0.1 else ""
    name = model if rng.random() < 0.95 else rng.choice(("", "..", "%2e%2e%2f", "a/b", "x" * 300, "%ff", "stats"))
    return DamagedRequest(f"/v2/models/{name}{version}/infer", tuple(headers.items()), body)


def _well_formed(rng: random.Random) -> tuple[dict[str, Any], bytes]:
    rows = rng.randint(1, 4)
    values = [round(rng.uniform(-9, 9), 3) for _ in range(rows * _ROW_FLOATS)]
    tensor: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [rows, _ROW_FLOATS]}
    raw = b""
    if rng.random() < 0.5:
        raw = struct.pack(f"<{len(values)}f", *values)
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = values
    head: dict[str, Any] = {"inputs": [tensor]}
    if rng.random() < 0.5:
        head["id"] = "mine"
        head["outputs"] = [{"name": "OUTPUT0", "parameters": {"binary_data": rng.random() < 0.5}}]
    if rng.random() < 0.4:
        head["parameters"] = {
            rng.choice(
                ("timeout", "priority", "deadline_ms", "execution_timeout_ms", "binary_data_output", "own")
            ): rng.choice((1, 5_000_000, True))
        }
    return head, raw


def _damage_document(rng: random.Random, head: dict[str, Any]) -> None:
    """Change one thing somewhere in the JSON part."""
    place: Any = head
    while True:
        key: Any
        if isinstance(place, dict) and place:
            key = rng.choice(list(place))
        elif isinstance(place, list) and place:
            key = rng.randrange(len(place))
        else:
            return
        inside = place[key]
        if isinstance(inside, dict | list) and inside and rng.random() < 0.7:
            place = inside
            continue
        _damage_member(rng, place, key)
        return


def _damage_member(rng: random.Random, place: Any, key: Any) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        del place[key]
    elif kind == 1:
        place[key] = copy.deepcopy(rng.choice(_VALUES))
    elif kind == 2 and key == "datatype":
        place[key] = rng.choice(_DATATYPES)
    elif kind == 3 and isinstance(place, list):
        place.insert(key, place[key])
    elif kind == 4 and isinstance(place, dict):
        place[rng.choice(("classification", "binary_data_size", "data", "shape", "name", "extra"))] = copy.deepcopy(
            rng.choice(_VALUES)
        )
    else:
        place[key] = rng.choice(_NUMBERS)


def _repeat(rng: random.Random, body: bytes) -> bytes:
    first = rng.randrange(len(body) + 1)
    return body[:first] + body[first : first + rng.randrange(200)] * 2 + body[first:]


def _nest(rng: random.Random, body: bytes) -> bytes:
    depth = rng.choice((10, 1000, 100_000))
    return b'{"inputs":' + b"[" * depth + b"]" * depth + b"}"


_BODY_DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip, flip, cut, grow, _repeat, _nest)
