"""A single-node Apache Kafka (KRaft) as a child process, for demo, benchmarks and tests.

Must not know tidegate's topics, nor anything of gateway or workers. The broker listens on 127.0.0.1 only and dies with
the process that started it. Everything here blocks: call it through asyncio.to_thread from an event loop.
"""

import base64
import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from local.archive import ClassArchive
from local.errors import KafkaStartError, PortTakenError
from local.guard import GuardedProcess
from local.jars import KafkaJars, kafka_jars
from local.java import Java, ensure_java

# Below the kernel's range for outgoing connections (32768 up): while a broker is down, a client that retries its port
# could otherwise be given that very port as its own, connect to itself, and so keep the broker from coming back.
_PORTS = range(20000, 32000)
_CONNECT_PACE_S = 0.05
_ANSWER_TIMEOUT_MS = 5000
_ENDED_BY_SIGTERM = 128 + 15
_LOG_TAIL_LINES = 20

_MEMORY = ["-Xms128m", "-Xmx384m", "-XX:+UseSerialGC"]
# The JVM's own log (not Kafka's) would fill the file with remarks on each class that cannot be archived.
_LOGGING = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}", "-Xlog:disable"]

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
log.dirs={log_dir}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
# One machine of few cores, shared with everything else: by default 3 and 8, which hand each request around.
num.network.threads=1
num.io.threads=2
# One node: nothing to replicate to.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# 50 partitions each by default: the first commit and the first transaction would wait for all of them.
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.num.partitions=1
# Small on disk and in the heap: by default segments of 1 GiB without a bound, and 128 MiB for the log cleaner.
log.segment.bytes=67108864
log.index.size.max.bytes=1048576
log.retention.bytes=2147483648
log.cleaner.dedupe.buffer.size=8388608
"""


@contextlib.contextmanager
def kafka(*, data_dir: Path | None = None, port: int | None = None) -> Iterator[str]:
    """The bootstrap servers of a Kafka to use: TIDEGATE_KAFKA_BOOTSTRAP when set, else a LocalKafka's for the while.

    Raises:
        LocalStackError: the broker could not be started.
    """
    if existing := os.environ.get("TIDEGATE_KAFKA_BOOTSTRAP"):
        yield existing
        return
    with LocalKafka(data_dir=data_dir, port=port) as broker:
        yield broker.bootstrap


class LocalKafka:
    """One Kafka broker of our own; use it as a context manager, or call `start` and, last, `close`.

    `stop`, `kill` and `restart` keep ports and data, so that clients find the same broker again. Not for use by two
    threads at once; the thread that starts it may end.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        start_timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
        more_properties: str = "",
    ) -> None:
        """
        Args:
            data_dir: kept, and used again if it holds an earlier broker's data; None: temporary, removed by `close`.
            port: the broker's port; None: a free one, chosen at the first start.
            start_timeout_s: from the process's start to its first answer.
            stop_timeout_s: from asking it to stop to killing it.
            more_properties: lines for server.properties that win over ours; {port}, {controller_port} and {log_dir} in
                them are filled in.
        """
        self._data_dir = data_dir
        self._port = port
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._more_properties = more_properties
        self._controller_port: int | None = None
        self._directory: Path | None = None
        self._process: GuardedProcess | None = None
        self._archive: ClassArchive | None = None
        self._failed = False

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients; the same from the first start on."""
        if self._port is None:
            raise RuntimeError("the broker has no port before it is started; call start()")
        return f"127.0.0.1:{self._port}"

    @property
    def directory(self) -> Path:
        """Where data, server.properties and kafka.log are; known from the first start on."""
        if self._directory is None:
            raise RuntimeError("the broker has no directory before it is started; call start()")
        return self._directory

    @property
    def log_path(self) -> Path:
        """The broker's log, appended to by each start."""
        return self.directory / "kafka.log"

    @property
    def pid(self) -> int:
        """Process id of the running broker's JVM."""
        if self._process is None:
            raise RuntimeError("the broker is not running; call start()")
        return self._process.pid

    def start(self) -> None:
        """Start the broker and return once it answers a client; does nothing when it runs already.

        Raises:
            LocalStackError: no Java, no jars, port taken, or a broker that ends or does not answer in time; its log is
                kept, and named in the message.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()  # takes note of a broker that ended by itself
        java, jars = ensure_java(), kafka_jars()
        self._choose_ports()
        self._make_directory()
        self._archive = ClassArchive.of(java=java, jars=jars, directory=self.directory)
        with self.log_path.open("ab") as log:
            if not (self._kafka_data / "meta.properties").exists():
                self._format(java, jars, log)
            self._launch(java, jars, log)
        self._await_answer()

    def stop(self) -> None:
        """Ask the broker to stop, wait, and kill it only when it takes longer than `stop_timeout_s`. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            status = self._process.kill()
        self._process = None
        if status == _ENDED_BY_SIGTERM:
            if self._archive is not None:
                self._archive.publish()
        else:
            self._failed = True
            print(f"tidegate: Kafka ended with {status}, not in order; its log: {self.log_path}", file=sys.stderr)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as an accident would, and wait for its end. Idempotent.

        The next start takes 9 s more: Kafka's controller takes the broker back when its old session has run out.
        """
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop and start on the same ports and data. Raises as `start` does."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove a temporary directory; of a broker that failed, its log stays. Idempotent."""
        self.stop()
        if self._data_dir is not None or self._directory is None:
            return
        if self._failed:
            shutil.rmtree(self._kafka_data, ignore_errors=True)
        else:
            shutil.rmtree(self._directory)
        self._directory = None

    def __enter__(self) -> Self:
        """Start; what a failed start leaves is closed."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    @property
    def _kafka_data(self) -> Path:
        return self.directory / "data"

    def _choose_ports(self) -> None:
        if self._port is None:
            self._port = _free_port()
        elif not _is_free(self._port):
            raise _port_taken(self._port)
        while self._controller_port is None or self._controller_port == self._port:
            self._controller_port = _free_port()

    def _make_directory(self) -> None:
        if self._data_dir is not None:
            self._directory = self._data_dir.absolute()
            self._directory.mkdir(parents=True, exist_ok=True)
        elif self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
        properties = (_PROPERTIES + self._more_properties).format(
            port=self._port, controller_port=self._controller_port, log_dir=self._kafka_data
        )
        self._properties_path.write_text(properties)

    @property
    def _properties_path(self) -> Path:
        return self.directory / "server.properties"

    def _format(self, java: Java, jars: KafkaJars, log: IO[bytes]) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        options = [*_MEMORY, *_LOGGING, "-XX:TieredStopAtLevel=1", *(self._archive.use() if self._archive else [])]
        # With "=": an id may begin with "-".
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--standalone"]
        command = [str(java.path), *options, "-cp", jars.classpath, *tool, "--config", str(self._properties_path)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
        if done.returncode != 0:
            raise self._start_error(f"formatting its directory ended with {done.returncode}")

    def _launch(self, java: Java, jars: KafkaJars, log: IO[bytes]) -> None:
        options = [*_MEMORY, *_LOGGING, *(self._archive.use_or_make() if self._archive else [])]
        command = [str(java.path), *options, "-cp", jars.classpath, "kafka.Kafka", str(self._properties_path)]
        self._process = GuardedProcess.start(
            command, log=log, scratch=None if self._data_dir is not None else self.directory
        )

    def _await_answer(self) -> None:
        process = self._process
        assert process is not None  # launched just before
        deadline_s = time.monotonic() + self._start_timeout_s
        while not self._answers():
            # The pace of the attempts to connect, cut short when the broker ends.
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(_CONNECT_PACE_S)
                self._process = None
                raise self._start_error(f"it ended with {status}")
            if time.monotonic() > deadline_s:
                self.kill()
                raise self._start_error(f"it did not answer within {self._start_timeout_s:g} s")

    def _answers(self) -> bool:
        """Whether the broker on our port is ours, registered and serving."""
        assert self._port is not None  # chosen before the launch
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
        except OSError:
            return False
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap,
                bootstrap_timeout_ms=_ANSWER_TIMEOUT_MS,
                request_timeout_ms=_ANSWER_TIMEOUT_MS,
            )
            with contextlib.closing(admin):
                cluster = admin.describe_cluster()
        except KafkaError:
            return False
        ours = f"cluster.id={cluster['cluster_id']}" in (self._kafka_data / "meta.properties").read_text().split()
        return ours and any(not broker["is_fenced"] for broker in cluster["brokers"])

    def _start_error(self, what: str) -> KafkaStartError | PortTakenError:
        self._failed = True
        lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        if any("Address already in use" in line for line in lines):
            for port in (self._port, self._controller_port):
                if port is not None and not _is_free(port):
                    return _port_taken(port)
        return KafkaStartError(
            f"Kafka did not start: {what}. The end of its log, {self.log_path}:\n" + "\n".join(lines) + "\n"
            "Read the first ERROR there; a directory that an older or broken Kafka left can be moved away."
        )


def _free_port() -> int:
    for port in random.sample(_PORTS, k=len(_PORTS)):
        if _is_free(port):
            return port
    raise PortTakenError(f"no port is free from {_PORTS.start} to {_PORTS.stop}; end what listens there")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Kafka does: a port in TIME_WAIT, left by the broker that was just stopped, counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _port_taken(port: int) -> PortTakenError:
    return PortTakenError(f"port {port} of 127.0.0.1 is taken by another process; end that, or ask for another port")
