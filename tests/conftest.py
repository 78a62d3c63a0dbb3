"""Fixtures that many tests share: one broker for the whole session, and a name of its own for each test."""

import hashlib
import platform
import shutil
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from local.kafka import LocalKafka


@pytest.fixture(scope="session")
def kafka() -> "Iterator[LocalKafka]":
    """A real broker, started once; a test that stops it must leave it running."""
    # Imported here: the unit tests, which share this file, need no Kafka client.
    from local.kafka import LocalKafka

    with LocalKafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Path:
    """Where compiled models are kept from one session to the next: making one takes a C++ compiler a minute."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("compiling a model takes a C++ compiler, and there is none")
    source = (Path(__file__).parent / "torch_models.py").read_bytes()
    made_for = f"{version('torch')} {platform.node()} ".encode() + source  # such code runs where it was compiled
    return request.config.cache.mkdir(f"compiled-{hashlib.sha256(made_for).hexdigest()[:12]}")


@pytest.fixture
def prefix() -> str:
    """A topic prefix that no other test has, such as `t1a2b3c`."""
    return f"t{uuid.uuid4().hex[:6]}"
