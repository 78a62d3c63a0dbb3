"""Reporter: tells the installation, through the control topic, what this worker is and what it has done.

About every two seconds, less often where there is much to tell; soon after a change of state, at most once a second;
and one report at a time, so that nothing piles up while the broker is away. Knows no Kafka client.
"""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import structlog

from schemas.errors import InferenceError
from schemas.model import ModelRef
from schemas.worker_report import REPORT_EVERY_S, WorkerReport, encode_report, report_key
from workers.model_states import ModelStates, told_models
from workers.publisher import Publication, Publisher
from workers.resident import ModelKey
from workers.statistics import Statistics

log = structlog.get_logger()

_AT_MOST_EVERY_S = 1.0
_BYTES_A_PERIOD = 64 * 1024  # a larger report comes more seldom, in proportion
_LONGEST_S = 20.0  # below the 30 s of silence after which a worker counts as dead


class Reporter:
    """Lives on the event loop."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        control_topic: str,
        pool: str,
        statistics: Statistics,
        devices: tuple[str, ...] = (),
        held_bytes: Callable[[], Mapping[ModelRef, int]] = dict,
    ) -> None:
        """`held_bytes`: what the models that are loaded hold."""
        self._publisher = publisher
        self._control_topic = control_topic
        self._pool = pool
        self._statistics = statistics
        self._started_ms = _now_ms()
        self._host = socket.gethostname()
        self._version = _own_version()
        self._states = ModelStates()
        self._changed = asyncio.Event()
        self._durable = asyncio.Event()
        self._durable.set()
        self._state = "starting"
        self._is_closed = False
        self.devices = devices
        self.held_bytes = held_bytes
        self.worker_id = f"{self._host}-{uuid.uuid4().hex[:8]}"

    def enter(self, state: str) -> None:
        """The worker's state from now on."""
        if state != self._state:
            self._state = state
            self._changed.set()

    def note_model(self, key: ModelKey, state: str, reason: str = "") -> None:
        """A model's state from now on, as the cache tells it."""
        if self._states.note(key, state, reason):
            self._changed.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._changed.clear()
            size_bytes = self._tell()
            await asyncio.sleep(_AT_MOST_EVERY_S)
            await self._durable.wait()
            rest_s = min(_LONGEST_S, REPORT_EVERY_S * max(1.0, size_bytes / _BYTES_A_PERIOD)) - _AT_MOST_EVERY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._changed.wait()

    async def close(self) -> None:
        """Say that this worker has stopped, and tell nothing more. A broker that is away will not hear of it."""
        self._is_closed = True
        await self._durable.wait()
        try:
            await self._publisher.append(self._control_topic, report_key(self.worker_id), None)
        except InferenceError as error:
            log.warning("tell_stop_failed", error=error.message)

    def report(self) -> tuple[WorkerReport, int]:
        """What is told now, and about how large it is in bytes."""
        models, size_bytes = told_models(self._statistics.used(), self._states, self.held_bytes())
        report = WorkerReport(
            pool=self._pool,
            state=self._state,
            started_ms=self._started_ms,
            at_ms=_now_ms(),
            host=self._host,
            version=self._version,
            devices=self.devices,
            models=models,
        )
        return report, size_bytes

    def _tell(self) -> int:
        if self._is_closed:
            return 0
        report, size_bytes = self.report()
        self._durable.clear()
        self._publisher.publish(
            Publication(
                self._control_topic, 0, encode_report(report), [], self._durable.set, key=report_key(self.worker_id)
            )
        )
        return size_bytes


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _own_version() -> str:
    try:
        return version("tidegate")
    except PackageNotFoundError:  # run from its sources
        return ""
