"""Stack: an installation's gateway and worker as processes, and Program: one such process, watched from outside.

Knows settings, logs and health endpoints; nothing of what is measured. Everything here blocks. Settings that are not
given here are the defaults: a TIDEGATE_ variable of the caller's environment changes no figure.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from local.errors import LocalStackError
from local.guard import GuardedProcess

_PACE_S = 0.01
_PATIENCE_S = 60.0
_STOP_S = 15.0
_LOG_TAIL_LINES = 15
_CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


class BenchmarkError(LocalStackError):
    """A benchmark could not be carried out; the message says why."""


class Program:
    """A running process of ours. `started_s` is its start by the monotonic clock, `port` that of its HTTP server."""

    def __init__(self, name: str, process: GuardedProcess, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.started_s = time.monotonic()
        self.port = 0
        self._process = process
        self._log = log

    def read(self, field: str) -> Any:
        """Wait for a line of the log that is a JSON object with this field; gives the field. Raises BenchmarkError."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            for line in self._log.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and field in event:
                        return event[field]
            self._pause(deadline_s, f"did not log {field!r}")

    def await_answer(self, path: str) -> float:
        """Wait until a GET of `path` is answered 200; the seconds since the process's start. Raises BenchmarkError."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._get(path)[0] == 200:
                    return time.monotonic() - self.started_s
            self._pause(deadline_s, f"did not answer {path} with 200")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples whose labels include these."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        samples = _SAMPLE.findall(self._get("/metrics")[1].decode())
        return sum(float(value) for got, pairs, value in samples if got == name and wanted <= set(pairs.split(",")))

    def cpu_s(self) -> float:
        """User and system time of all its threads so far; a step of the clock is usually 10 ms."""
        return cpu_s(self.pid)

    def resident_mb(self) -> float:
        """Resident memory in units of 1,000,000 bytes."""
        match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        if match is None:
            raise BenchmarkError(f"{self.name} has no resident memory: it has ended")
        return int(match[1]) * 1024 / 1e6

    def end(self) -> str:
        """Wait for its end; its output. Raises BenchmarkError unless it ended well."""
        status = self._process.wait()
        if status:
            raise self._failure(f"ended with {status}")
        return self._log.read_text(errors="replace")

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5.0)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()

    def _pause(self, deadline_s: float, what: str) -> None:
        """The pace of looking again, cut short when the process ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise self._failure(f"ended with {self._process.wait(_PACE_S)}")
        if time.monotonic() > deadline_s:
            raise self._failure(f"{what} within {_PATIENCE_S:g} s")

    def _failure(self, what: str) -> BenchmarkError:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        return BenchmarkError(f"{self.name} {what}. The end of its log:\n{tail}")


@contextlib.contextmanager
def program(name: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> Iterator[Program]:
    """`python <arguments>` for the while; it is told to stop at the end, and killed only if it does not.

    `environment` is added to this process's own, of which nothing of tidegate's passes.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TIDEGATE_")}
    with log.open("wb") as output:
        process = GuardedProcess.start(
            [sys.executable, *arguments], log=output, environment={**inherited, **environment}
        )
    try:
        yield Program(name, process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()


def cpu_s(pid: int) -> float:
    """User and system time of all threads of a process so far, in seconds."""
    # Behind the name, which may hold anything: state is the first field, utime and stime the 12th and 13th.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _CLOCK_TICK_S


class Stack:
    """One installation: topic prefix, model repository, object store. Nothing runs before it is asked for."""

    def __init__(self, *, bootstrap: str, directory: Path, prefix: str, models: Mapping[str, str]) -> None:
        """`models`: config.pbtxt by name; of the device backend, which has no file."""
        self.bootstrap = bootstrap
        self.prefix = prefix
        self._directory = directory
        self._models = dict(models)
        self._job_key = secrets.token_hex(32)

    @property
    def repository(self) -> Path:
        """The model repository, written when it is first asked for."""
        repository = self._directory / "models"
        for name, config in self._models.items():
            (repository / name / "1").mkdir(parents=True, exist_ok=True)
            (repository / name / "config.pbtxt").write_text(config)
        return repository

    @contextlib.contextmanager
    def worker(self, **settings: str) -> Iterator[Program]:
        """A worker that is starting; `await_answer("/health/ready")` comes next. Settings by their names."""
        with self.command("worker", ["-m", "workers", "serve"], **settings) as worker:
            worker.port = worker.read("health_port")
            yield worker

    @contextlib.contextmanager
    def gateway(self, **settings: str) -> Iterator[Program]:
        """A gateway that is starting; `await_answer("/v2/health/ready")` comes next. Settings by their names."""
        with self.command("gateway", ["-m", "gateway"], **settings) as gateway:
            gateway.port = gateway.read("port")
            yield gateway

    @contextlib.contextmanager
    def both(self, **settings: str) -> Iterator[tuple[Program, Program]]:
        """A gateway that serves these models, and a worker that is ready. `settings` are the gateway's."""
        with self.worker() as worker, self.gateway(**settings) as gateway:
            worker.await_answer("/health/ready")
            for model in self._models:
                gateway.await_answer(f"/v2/models/{model}/ready")
            yield gateway, worker

    def provision(self) -> None:
        """Topics, the pool's first offsets and the broker's own topics, as a first worker leaves them."""
        with self.worker() as worker:
            worker.await_answer("/health/ready")

    @contextlib.contextmanager
    def command(self, name: str, arguments: Sequence[str], **settings: str) -> Iterator[Program]:
        """`python <arguments>` with the settings of this installation."""
        environment = {
            "TIDEGATE_KAFKA_BOOTSTRAP": self.bootstrap,
            "TIDEGATE_PREFIX": self.prefix,
            "TIDEGATE_REPOSITORY": str(self.repository),
            "TIDEGATE_STORE": str(self._directory / "store"),
            "TIDEGATE_CACHE": str(self._directory / "cache"),
            "TIDEGATE_JOB_KEY": self._job_key,
            "TIDEGATE_PORT": "0",
            "TIDEGATE_GRPC_PORT": "0",
            "TIDEGATE_HEALTH_PORT": "0",
            **{f"TIDEGATE_{name.upper()}": value for name, value in settings.items()},
        }
        with program(name, arguments, log=self._directory / f"{name}.log", environment=environment) as running:
            yield running
