"""GatewayProcess: the gateway as tests run it, a child process whose log tells when something has happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

JOB_KEY = "a key for the tests of the gateway"


class GatewayProcess:
    """`python -m gateway` with settings by name; enter it to start, leave it to kill what still runs."""

    arguments: tuple[str, ...] = ()
    speaks_grpc = True

    def __init__(self, *, bootstrap: str, prefix: str, store: Path, **settings: Any) -> None:
        settings |= {"kafka_bootstrap": bootstrap, "prefix": prefix, "store": store, "job_key": JOB_KEY, "port": 0}
        settings = {"grpc_port": 0, **settings}
        self._environment = os.environ | {f"TIDEGATE_{name.upper()}": str(value) for name, value in settings.items()}
        self._lines: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._ended = False
        self.prefix = prefix
        self.store = store
        self.url = ""
        self.grpc = ""  # host:port of the gRPC side

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *self.arguments], env=self._environment, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = f"http://127.0.0.1:{self.logged('listen')['port']}"
        if self.speaks_grpc:
            self.grpc = f"127.0.0.1:{self.logged('listen_grpc')['grpc_port']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None  # piped
        self.process.stderr.close()

    def ready(self) -> Self:
        """Wait until it serves."""
        self.logged("enter_state", state="serving")
        return self

    def logged(self, event: str, *, timeout_s: float = 20.0, **fields: Any) -> dict[str, Any]:
        """Wait for a log line of this event with these fields."""
        wanted = {"event": event, **fields}
        deadline_s = time.monotonic() + timeout_s
        seen = 0
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if wanted.items() <= line.items():
                        return line
                seen = len(self._lines)
                left_s = deadline_s - time.monotonic()
                if self._ended or left_s <= 0 or not self._news.wait(left_s):
                    tail = "\n".join(json.dumps(line) for line in self._lines[-30:])
                    raise AssertionError(f"no log line {wanted}; the last lines:\n{tail}")

    def seen(self, event: str, **fields: Any) -> bool:
        """Whether there has been such a log line already."""
        return any({"event": event, **fields}.items() <= line.items() for line in list(self._lines))

    def client(self) -> httpx.AsyncClient:
        """An HTTP client of it; its waits are long so that what hangs fails by the test's own bound."""
        return httpx.AsyncClient(base_url=self.url, timeout=30)

    def management_client(self) -> httpx.AsyncClient:
        """Likewise, for the management port; the gateway must have one."""
        url = f"http://127.0.0.1:{self.logged('listen_management')['port']}"
        return httpx.AsyncClient(base_url=url, timeout=30)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def ended(self, *, timeout_s: float = 20.0) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(timeout_s)

    def _read(self) -> None:
        assert self.process.stderr is not None  # piped
        for line in self.process.stderr:
            try:
                document = json.loads(line)
            except ValueError:
                document = {"event": "NOT JSON", "line": line}
            with self._news:
                self._lines.append(document)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def text(self) -> list[str]:
        """All lines so far."""
        return [json.dumps(line) for line in self._lines]

    def not_json(self) -> list[str]:
        """Lines on stderr that are no JSON objects."""
        return [line["line"] for line in self._lines if line["event"] == "NOT JSON"]
