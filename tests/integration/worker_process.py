"""WorkerProcess: a real `python -m workers serve` as a child, and Installation: where a test's workers live.

Every wait is bounded and ends with the process; the log is read by a thread and kept. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

_PATIENCE_S = 30.0  # for anything that takes a second on a machine with nothing else to do
_PACE_S = 0.05
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)

FAST = {"TIDEGATE_PARTITIONS": "1", "TIDEGATE_COMMIT_INTERVAL_MS": "50"}


class WorkerProcess:
    """One worker. Enter it to start it; leaving kills what still runs. Methods that wait do so in a thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment, "TIDEGATE_HEALTH_PORT": "0"}
        self._changed = threading.Condition()
        self._closed = False  # the process has closed its log
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.lines: list[str] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.to_thread(self._launch)
        self._reader = threading.Thread(target=self._read, name="worker log", daemon=True)
        self._reader.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if kind is not None:  # pytest shows it with the failure
            print(f"--- log of worker {self.pid}", *self.lines, sep="\n", file=sys.stderr)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "enter the WorkerProcess first"
        return self._process

    async def ready(self, *, within_s: float = _PATIENCE_S) -> Self:
        """Wait until /health/ready answers 200."""
        await asyncio.to_thread(self._await_ready, within_s)
        return self

    async def logged(self, *texts: str, within_s: float = _PATIENCE_S) -> str:
        """Wait for a line of the log that holds all of these texts, from the start on; gives it."""
        return await asyncio.to_thread(self._await_line, texts, within_s)

    async def ended(self, *, within_s: float = _PATIENCE_S) -> int:
        """Wait for the process's end; its exit status."""
        return await asyncio.to_thread(self._await_end, within_s)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._running.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Idempotent."""
        self._running.kill()
        self._running.wait()
        if self._reader is not None:
            self._reader.join()

    def get(self, path: str) -> httpx.Response:
        """GET from the health server."""
        port = json.loads(self._await_line(('"start_worker"', "health_port"), _PATIENCE_S))["health_port"]
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            return client.get(f"http://127.0.0.1:{port}{path}")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples whose labels include these."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        samples = _SAMPLE.findall(self.get("/metrics").text)
        return sum(float(value) for got, pairs, value in samples if got == name and wanted <= set(pairs.split(",")))

    async def measured(self, value: float, name: str, *, within_s: float = _PATIENCE_S, **labels: str) -> None:
        """Wait until `metric` is at least `value`."""
        await asyncio.to_thread(self._await_metric, value, name, labels, within_s)

    def maps(self) -> str:
        """The names of the files that the process has mapped, its libraries among them."""
        return Path(f"/proc/{self.pid}/maps").read_text()

    def resident_bytes(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None
        return 1024 * int(match[1])

    def _launch(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "workers", "serve"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _read(self) -> None:
        assert self._running.stderr is not None
        with self._running.stderr as log:
            for line in log:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _await_line(self, texts: tuple[str, ...], within_s: float) -> str:
        def found() -> str | None:
            return next((line for line in self.lines if all(text in line for text in texts)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or self._closed, within_s)
            line = found()
        assert line is not None, self._told(f"did not log {texts} within {within_s:g} s")
        return line

    def _await_ready(self, within_s: float) -> None:
        end_s = time.monotonic() + within_s
        self._await_line(("assign_partitions",), within_s)
        while self.get("/health/ready").status_code != 200:
            assert time.monotonic() < end_s, self._told(f"was not ready within {within_s:g} s")
            with self._changed:  # the pace of asking, cut short by news
                assert not self._closed, self._told("ended before it was ready")
                self._changed.wait(_PACE_S)

    def _await_metric(self, value: float, name: str, labels: dict[str, str], within_s: float) -> None:
        end_s = time.monotonic() + within_s
        while (got := self.metric(name, **labels)) < value:
            assert time.monotonic() < end_s, self._told(f"has {name} at {got:g}, not {value:g}, after {within_s:g} s")
            with self._changed:  # the pace of asking, cut short by news
                self._changed.wait(_PACE_S)

    def _await_end(self, within_s: float) -> int:
        try:
            status = self._running.wait(within_s)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(self._told(f"did not end within {within_s:g} s")) from late
        assert self._reader is not None
        self._reader.join()
        return status

    def _told(self, what: str) -> str:
        return "\n".join([f"worker {self.pid} {what}; its log:", *self.lines])


@dataclass(frozen=True)
class Installation:
    """Broker, topic prefix, model repository and object store of one test."""

    bootstrap: str
    prefix: str
    directory: Path

    @property
    def repository(self) -> Path:
        """The model repository."""
        return self.directory / "models"

    @property
    def store(self) -> Path:
        """The object store."""
        return self.directory / "store"

    def worker(self, *, s3_url: str | None = None, **settings: Any) -> WorkerProcess:
        """A worker of this installation; settings by their names, such as `drain_s=2`; `s3_url`: where S3 answers."""
        led = {} if s3_url is None else {"AWS_ENDPOINT_URL": s3_url}
        return WorkerProcess({**self.environment(**settings), **led})

    def environment(self, **settings: Any) -> dict[str, str]:
        """What leads a command of the workers to this installation."""
        return {
            **FAST,
            "TIDEGATE_KAFKA_BOOTSTRAP": self.bootstrap,
            "TIDEGATE_PREFIX": self.prefix,
            "TIDEGATE_REPOSITORY": str(self.repository),
            "TIDEGATE_STORE": str(self.store),
            "TIDEGATE_CACHE": str(self.directory / "cache"),
            **{f"TIDEGATE_{name.upper()}": str(value) for name, value in settings.items()},
        }

    def add_device(
        self, name: str, *, max_batch_size: int = 32, delay_us: int = 0, dims: str = "-1", **parameters: float
    ) -> None:
        """Lay out a model of the device backend (see workers/backends/device.py): FP32, OUTPUT0 = INPUT0."""
        (self.repository / name / "1").mkdir(parents=True, exist_ok=True)
        tensor = f"data_type: TYPE_FP32 dims: [{dims}]"
        text = (
            f'backend: "device" max_batch_size: {max_batch_size}\n'
            f'input {{ name: "INPUT0" {tensor} }} output {{ name: "OUTPUT0" {tensor} }}\n'
            f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}\n"
        )
        for key, value in parameters.items():
            text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        (self.repository / name / "config.pbtxt").write_text(text)
