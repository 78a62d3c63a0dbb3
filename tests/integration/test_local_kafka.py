"""The local broker: it serves, keeps its data, ends with its owner, and says why when it does not start."""

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from local.errors import KafkaStartError, LocalStackError, PortTakenError
from local.kafka import LocalKafka
from local.kafka import kafka as running_kafka

pytestmark = pytest.mark.kafka

_END_TIMEOUT_S = 15.0


async def _create_topic(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def _produce(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic, value)


async def _first_value(bootstrap: str, topic: str) -> bytes | None:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=f"{topic}.g", auto_offset_reset="earliest")
    async with asyncio.timeout(20), consumer:
        record = await consumer.getone()
    value: bytes | None = record.value
    return value


@contextmanager
def _watched(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process ends."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ended(descriptor: int) -> bool:
    readable, _, _ = select.select([descriptor], [], [], _END_TIMEOUT_S)
    return bool(readable)


async def test_record_goes_through_the_broker(kafka: LocalKafka, prefix: str) -> None:
    topic = f"{prefix}.echo"
    await _create_topic(kafka.bootstrap, topic)
    await _produce(kafka.bootstrap, topic, b"one")
    assert await _first_value(kafka.bootstrap, topic) == b"one"


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_records_survive_the_end_of_the_broker(kafka: LocalKafka, prefix: str, end: str) -> None:
    topic, bootstrap = f"{prefix}.kept", kafka.bootstrap
    await _create_topic(bootstrap, topic)
    await _produce(bootstrap, topic, b"before")
    with _watched(kafka.pid) as broker:
        await asyncio.to_thread(getattr(kafka, end))
        assert _ended(broker)
    await asyncio.to_thread(kafka.start)
    assert kafka.bootstrap == bootstrap
    assert await _first_value(bootstrap, topic) == b"before"


def test_start_of_a_running_broker_changes_nothing(kafka: LocalKafka) -> None:
    pid = kafka.pid
    kafka.start()
    assert kafka.pid == pid


def test_broker_listens_on_loopback_only(kafka: LocalKafka) -> None:
    listening = {
        fields[1].split(":")[0]
        for table in ("tcp", "tcp6")
        for fields in map(str.split, Path(f"/proc/{kafka.pid}/net/{table}").read_text().splitlines()[1:])
        if int(fields[1].split(":")[1], 16) == int(kafka.bootstrap.split(":")[1]) and fields[3] == "0A"
    }
    # 127.0.0.1 as the kernel writes it, plain or mapped into IPv6.
    assert listening
    assert all(address.endswith("0100007F") for address in listening)


@pytest.mark.parametrize("owner_ends_by", [signal.SIGKILL, signal.SIGTERM])
def test_broker_dies_with_its_owner_even_if_started_by_a_thread_that_ended(
    owner_ends_by: signal.Signals, tmp_path: Path
) -> None:
    owner_code = """
import sys, threading
from local.kafka import LocalKafka
broker = LocalKafka()
thread = threading.Thread(target=broker.start)
thread.start()
thread.join()
print(broker.pid, broker.directory, flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", owner_code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        guard_pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        with _watched(int(pid)) as broker, _watched(guard_pid) as guard:
            owner.send_signal(owner_ends_by)
            assert _ended(broker)
            assert _ended(guard)
    assert not Path(directory).exists()


def test_given_directory_is_kept_and_used_again(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    with LocalKafka(data_dir=directory) as first:
        asyncio.run(_create_topic(first.bootstrap, "t.kept"))
        asyncio.run(_produce(first.bootstrap, "t.kept", b"kept"))
    assert (directory / "kafka.log").exists()
    # Another port than before, as after a reboot.
    with LocalKafka(data_dir=directory) as second:
        assert second.directory == directory
        assert asyncio.run(_first_value(second.bootstrap, "t.kept")) == b"kept"


def test_temporary_directory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with LocalKafka() as broker:
        assert broker.directory.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_failed_start_reports_the_log_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=another\n")
    with pytest.raises(KafkaStartError) as failure, LocalKafka(data_dir=tmp_path):
        pass
    log = tmp_path / "kafka.log"
    assert str(log) in str(failure.value)
    assert "node" in str(failure.value).lower()
    assert log.stat().st_size > 0


def test_failed_start_in_a_temporary_directory_keeps_the_log_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KafkaStartError, match=r"kafka\.log"), LocalKafka(start_timeout_s=0.01):
        pass
    (directory,) = tmp_path.iterdir()
    assert (directory / "kafka.log").exists()
    assert not (directory / "data").exists()


def test_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=str(port)):
            LocalKafka(port=port).start()


def test_existing_bootstrap_is_used_and_nothing_is_started(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TIDEGATE_KAFKA_BOOTSTRAP", kafka.bootstrap)
    # No jars here: a start would raise.
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with running_kafka() as bootstrap:
        assert bootstrap == kafka.bootstrap
    monkeypatch.delenv("TIDEGATE_KAFKA_BOOTSTRAP")
    with pytest.raises(LocalStackError, match="KAFKA_HOME"), running_kafka():
        pass


def test_broker_ends_when_its_guard_is_killed_and_the_owner_stops_it(tmp_path: Path) -> None:
    broker = LocalKafka(data_dir=tmp_path)
    broker.start()
    guard_pid = int(Path(f"/proc/{broker.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    with _watched(broker.pid) as process:
        os.kill(guard_pid, signal.SIGKILL)
        broker.close()
        assert _ended(process)
