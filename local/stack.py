"""Stack: Kafka, one gateway and one worker as child processes, started in order and stopped in the reverse order.

Must not know any model, nor what the stack is used for. Everything here blocks, and the children die with this process.
"""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from local.errors import LocalStackError
from local.guard import GuardedProcess
from local.kafka import LocalKafka

POOL = "default"

_READY_TIMEOUT_S = 60.0
_PACE_S = 0.05
_REQUEST_TIMEOUT_S = 5.0
_DRAIN_S = 5.0  # nobody but the person at the terminal waits for what is underway
_STOP_TIMEOUT_S = 15.0
_LOG_TAIL_LINES = 15


class StackStartError(LocalStackError):
    """Gateway or worker did not come up, or a command on the stack failed; the message holds the end of its log."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A running gateway or worker. `port_field`: where its log tells the port that it listens on."""

    name: str
    process: GuardedProcess
    log: Path
    port_field: str
    ready_path: str

    def port(self, field: str = "") -> int | None:
        """The port of its HTTP server, or what the log tells as `field`; None before it listens."""
        field = field or self.port_field
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and field in event:
                    return int(event[field])
        return None

    def answers(self, path: str) -> bool:
        """Whether a GET of this path is answered 200 now."""
        port = self.port()
        if port is None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_REQUEST_TIMEOUT_S)
        with contextlib.closing(connection):
            try:
                connection.request("GET", path)
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False


class Stack:
    """A whole tidegate on this machine; use it as a context manager. Not for use by two threads at once."""

    def __init__(
        self,
        *,
        models: str,
        keep: Path | None = None,
        prefix: str = "tidegate",
        port: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        """
        Args:
            models: the model repository, a directory or s3://bucket/prefix.
            keep: directory of Kafka's data, the object store, the job key and the logs, used again by the next stack
                that is given it; None: temporary, removed at the end unless something failed.
            prefix: what the names of all topics and groups begin with.
            port: of the gateway; 0: any free one.
            say: told in a line what has been started.
        """
        self._models = models
        self._keep = keep
        self._prefix = prefix
        self._wanted_port = port
        self._say = say
        self._failed = False
        self._opened = contextlib.ExitStack()
        self._parts: list[_Part] = []
        self.directory = Path()
        self.bootstrap = ""
        self.url = ""
        self.grpc = ""
        self.pids: list[int] = []

    def __enter__(self) -> Self:
        """Start everything and return when it is ready. Raises LocalStackError; what was started is stopped then."""
        with contextlib.ExitStack() as opened:
            self._open(opened)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop gateway, worker and Kafka, in this order, and remove a temporary directory."""
        self._opened.__exit__(kind, error, trace)

    @property
    def logs(self) -> Path:
        """Directory of the logs, one file per process; each start begins them anew."""
        return self.directory / "logs"

    def environment(self) -> dict[str, str]:
        """The environment in which `python -m workers ...` works on this stack."""
        return {
            "TIDEGATE_DRAIN_S": f"{_DRAIN_S:g}",
            "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime sends usage data from 1.29 on; the user may set 0
            **os.environ,
            "TIDEGATE_KAFKA_BOOTSTRAP": self.bootstrap,
            "TIDEGATE_PREFIX": self._prefix,
            "TIDEGATE_STORE": str(self.directory / "store"),
            "TIDEGATE_REPOSITORY": self._models,
            "TIDEGATE_POOL": POOL,
            "TIDEGATE_JOB_KEY": self._job_key(),
            "TIDEGATE_HOST": "127.0.0.1",
            "TIDEGATE_PORT": str(self._wanted_port),
            "TIDEGATE_GRPC_PORT": "0",
            "TIDEGATE_HEALTH_HOST": "127.0.0.1",
            "TIDEGATE_HEALTH_PORT": "0",
        }

    def await_answer(self, path: str, *, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Wait until the gateway answers a GET of this path with 200. Raises StackStartError."""
        gateway = next(part for part in self._parts if part.name == "gateway")
        self._await(gateway, path, timeout_s)

    def run(self, name: str, arguments: list[str]) -> str:
        """Run `python <arguments>` on this stack to its end and return its output. Raises StackStartError."""
        log = self.logs / f"{name}.log"
        process = self._start_process(arguments, log)
        try:
            status = process.wait()
        finally:
            process.kill()
        if status != 0:
            raise self._failure(name, log, f"ended with {status}")
        return log.read_text(errors="replace")

    def wait(self) -> None:
        """Return never: wait until gateway or worker ends by itself. Raises StackStartError then."""
        ended: SimpleQueue[tuple[_Part, int]] = SimpleQueue()
        for part in self._parts:
            Thread(target=lambda part=part: ended.put((part, part.process.wait())), daemon=True).start()
        part, status = ended.get()
        raise self._failure(part.name, part.log, f"ended by itself with {status}")

    def still_running(self) -> list[int]:
        """Process ids of what was started here and runs yet; empty after the end."""
        return [pid for pid in self.pids if _exists(pid)]

    def log_tail(self, name: str) -> str:
        """The last lines of a process's log."""
        return _tail(self.logs / f"{name}.log")

    def _open(self, opened: contextlib.ExitStack) -> None:
        opened.enter_context(self._directory())
        began_s = time.monotonic()
        self.bootstrap = opened.enter_context(self._kafka())
        self._say(f"Kafka at {self.bootstrap} ({time.monotonic() - began_s:.1f} s)")
        began_s = time.monotonic()
        worker = opened.enter_context(
            self._part("worker", ["-m", "workers", "serve"], port_field="health_port", ready_path="/health/ready")
        )
        gateway = opened.enter_context(
            self._part("gateway", ["-m", "gateway"], port_field="port", ready_path="/v2/health/ready")
        )
        self._parts = [gateway, worker]
        for part in self._parts:
            self._await(part, part.ready_path, _READY_TIMEOUT_S)
        self.url = f"http://127.0.0.1:{gateway.port()}"
        self.grpc = f"127.0.0.1:{gateway.port('grpc_port')}"
        self._say(f"gateway at {self.url} and one worker, ready ({time.monotonic() - began_s:.1f} s)")

    @contextlib.contextmanager
    def _directory(self) -> Iterator[None]:
        self.directory = self._keep.absolute() if self._keep else Path(tempfile.mkdtemp(prefix="tidegate-stack-"))
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            if self._keep is None and not self._failed:
                shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def _kafka(self) -> Iterator[str]:
        """Kafka of TIDEGATE_KAFKA_BOOTSTRAP when that is set, else one of our own."""
        if existing := os.environ.get("TIDEGATE_KAFKA_BOOTSTRAP"):
            yield existing
            return
        with LocalKafka(data_dir=self.directory / "kafka" if self._keep else None) as broker:
            self.pids.append(broker.pid)
            yield broker.bootstrap

    @contextlib.contextmanager
    def _part(self, name: str, arguments: list[str], *, port_field: str, ready_path: str) -> Iterator[_Part]:
        log = self.logs / f"{name}.log"
        process = self._start_process(arguments, log)
        try:
            yield _Part(name=name, process=process, log=log, port_field=port_field, ready_path=ready_path)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start_process(self, arguments: list[str], log: Path) -> GuardedProcess:
        scratch = None if self._keep else self.directory
        with log.open("wb") as output:
            process = GuardedProcess.start(
                [sys.executable, *arguments], log=output, scratch=scratch, environment=self.environment()
            )
        self.pids.append(process.pid)
        return process

    def _await(self, part: _Part, path: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not part.answers(path):
            # The pace of the attempts, cut short when the process ends.
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = part.process.wait(_PACE_S)
                raise self._failure(part.name, part.log, f"ended with {status}")
            if time.monotonic() > deadline_s:
                raise self._failure(part.name, part.log, f"did not answer {path} with 200 within {timeout_s:g} s")

    def _failure(self, name: str, log: Path, what: str) -> StackStartError:
        self._failed = True
        return StackStartError(f"the {name} {what}. The end of its log, {log}:\n{_tail(log)}")

    def _job_key(self) -> str:
        path = self.directory / "job-key"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))
        return path.read_text()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
