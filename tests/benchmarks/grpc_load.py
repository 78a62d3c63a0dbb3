"""gRPC load: the same ModelInfer over a few connections for some seconds, in a process of its own. Knows no server.

It writes HTTP/2 itself, with frames made once, because gRPC's own client takes several times the processor time of what
is measured; what wrk is for HTTP. As a program, with address, message in hexadecimal digits, outstanding and seconds:
`python -m tests.benchmarks.grpc_load 127.0.0.1:8001 0a08... 64 5`.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from typing import NamedTuple

from gateway.grpc_messages.inference_pb2 import ModelInferRequest
from schemas.v2 import decode_request
from tests.benchmarks.load import Load
from tests.benchmarks.rows import row_body
from tests.benchmarks.stack import BenchmarkError

CONNECTIONS = 4

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_BYTES = (1 << 31) - 1
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


class _Open(NamedTuple):
    """A request under way."""

    begun_s: float
    answered: bool = False  # a message has come: gRPC sends none with an error


def infer(address: str, model: str, *, outstanding: int, run_s: int) -> Load:
    """Have a server at host:port run the benchmarks' row with this model for `run_s` seconds, `outstanding` at a time.

    Raises BenchmarkError when a single call fails: such a figure would mean nothing.
    """
    arguments = [address, row_message(model).hex(), str(outstanding), str(run_s)]
    command = [sys.executable, "-m", "tests.benchmarks.grpc_load", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"the gRPC load failed with {done.returncode}: {done.stdout}{done.stderr}")
    return Load(**json.loads(done.stdout))


def row_message(model: str) -> bytes:
    """The benchmarks' row as a ModelInferRequest."""
    message = ModelInferRequest(model_name=model)
    for tensor in decode_request(row_body().encode()).inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.data))
    return message.SerializeToString()


class _Connection:
    """One HTTP/2 connection that keeps `outstanding` calls under way."""

    def __init__(self, address: tuple[str, int], body: bytes, outstanding: int) -> None:
        self._head = _request_head()
        self._message = b"\x00" + len(body).to_bytes(4, "big") + body
        self._next_stream = 1
        self._open: dict[int, _Open] = {}
        self._read = bytearray()
        self.times_s: list[float] = []
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = b"\x00\x04" + _WINDOW_BYTES.to_bytes(4, "big")  # as large as can be: no answer waits for us
        window = _frame(_WINDOW_UPDATE, 0, 0, (_WINDOW_BYTES - 65_535).to_bytes(4, "big"))
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, settings) + window)
        self.socket.sendall(b"".join([self._call() for _ in range(outstanding)]))

    def step(self) -> None:
        """Read what has come, and send a new call for each answer. Raises BenchmarkError."""
        got = self.socket.recv(1 << 18)
        if not got:
            raise BenchmarkError("the server has closed the connection")
        self._read += got
        out, at = [], 0
        while len(self._read) - at >= 9:
            end = at + 9 + int.from_bytes(self._read[at : at + 3], "big")
            if len(self._read) < end:
                break
            kind, flags = self._read[at + 3], self._read[at + 4]
            stream = int.from_bytes(self._read[at + 5 : at + 9], "big")
            out.append(self._take(kind, flags, stream, bytes(self._read[at + 9 : end])))
            at = end
        del self._read[:at]
        self.socket.sendall(b"".join(out))

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        """What to send for this frame."""
        if kind == _DATA:
            self._open[stream] = self._open[stream]._replace(answered=True)
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            call = self._open.pop(stream)
            if not call.answered:
                raise BenchmarkError(f"a call failed: {payload!r}")
            self.times_s.append(time.perf_counter() - call.begun_s)
            return self._call()
        if kind in (_RESET, _GOAWAY):
            raise BenchmarkError(f"the server ends what is under way: {payload!r}")
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            return _frame(kind, _ACK, 0, payload if kind == _PING else b"")
        return b""

    def _call(self) -> bytes:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._open[stream] = _Open(time.perf_counter())
        return _frame(_HEADERS, _END_HEADERS, stream, self._head) + _frame(_DATA, _END_STREAM, stream, self._message)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _request_head() -> bytes:
    """The request's header fields in HPACK: method and scheme from the static table, the others spelled out."""

    def field(name: bytes, value: bytes) -> bytes:
        return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value

    return b"\x83\x86" + b"".join(
        (
            field(b":path", b"/inference.GRPCInferenceService/ModelInfer"),
            field(b":authority", b"127.0.0.1"),
            field(b"content-type", b"application/grpc"),
            field(b"te", b"trailers"),
        )
    )


def _main(address: str, body: bytes, outstanding: int, run_s: int) -> None:
    host, _, port = address.rpartition(":")
    count = min(CONNECTIONS, outstanding)
    shares = [outstanding // count + (number < outstanding % count) for number in range(count)]
    begun_s = time.perf_counter()
    connections = [_Connection((host, int(port)), body, share) for share in shares]
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each.socket, selectors.EVENT_READ, each)
        while time.perf_counter() < begun_s + run_s:
            for key, _ in selector.select(1.0):
                key.data.step()
    duration_s = time.perf_counter() - begun_s
    times_s = sorted(time_s for each in connections for time_s in each.times_s)
    if not times_s:
        raise BenchmarkError("no call was answered")
    p50_ms, p99_ms = (1e3 * times_s[len(times_s) * percent // 100] for percent in (50, 99))
    print(json.dumps({"requests": len(times_s), "duration_s": duration_s, "p50_ms": p50_ms, "p99_ms": p99_ms}))


if __name__ == "__main__":
    _main(sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
