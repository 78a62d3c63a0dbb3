"""A link to a server that passes so many bytes per second back from it, over all connections: a process of its own.

`python -m tests.benchmarks.slow_link <host> <port> <bytes per second>` prints its port, and ends with its input. The
bytes are moved by the kernel, so that it takes little of the processor from what is measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

_PIECE_BYTES = 256 * 1024
_PIPE_BYTES = 1024 * 1024
_BURST_S = 0.01


@contextlib.contextmanager
def slow_link(url: str, *, bytes_s: float) -> Iterator[str]:
    """The url of the server, as it is reached over such a link."""
    there = urlsplit(url)
    command = [sys.executable, "-m", __name__, str(there.hostname), str(there.port), str(bytes_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


class _Rate:
    """Lets bytes pass one after the other, each taking its time."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._lock = threading.Lock()
        self._free_s = time.monotonic()

    def take(self, count: int) -> None:
        """Wait until the link has passed so many more bytes."""
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic() - _BURST_S) + count / self._bytes_s
            wait_s = self._free_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)


def _pass_back(server: socket.socket, client: socket.socket, rate: _Rate) -> None:
    source, sink = os.pipe()
    fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    with contextlib.suppress(OSError), open(source, "rb"), open(sink, "wb"):
        while count := os.splice(server.fileno(), sink, _PIECE_BYTES):
            rate.take(count)
            while count:
                count -= os.splice(source, client.fileno(), count)
    _end(server, client)


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := client.recv(1 << 16):
            server.sendall(data)
    _end(server, client)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _serve(listening: socket.socket, address: tuple[str, int], rate: _Rate) -> None:
    while True:
        client, _ = listening.accept()
        server = socket.create_connection(address)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
        threading.Thread(target=_pass_back, args=(server, client, rate), daemon=True).start()


if __name__ == "__main__":
    _host, _port, _bytes_s = sys.argv[1:]
    with socket.create_server(("127.0.0.1", 0), backlog=128) as _listening:
        print(_listening.getsockname()[1], flush=True)
        _arguments = (_listening, (_host, int(_port)), _Rate(float(_bytes_s)))
        threading.Thread(target=_serve, args=_arguments, daemon=True).start()
        sys.stdin.read()
