"""What the end-to-end tests share."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.local_process import MARK, marked_pids


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment for a command that starts its own Kafka; fails when a process of it outlives the test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_KAFKA_")}
    environment |= {MARK: uuid.uuid4().hex, "TMPDIR": str(tmp_path), "COLUMNS": "120"}
    yield environment
    left = marked_pids(environment)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
