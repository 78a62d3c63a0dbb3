"""ControlClient: writes to the control topic as gateways do, and reads what workers tell there. Waits are bounded."""

from __future__ import annotations

import time
from collections.abc import Callable

from schemas.cancellation import Cancellation, cancellation_key, encode_cancellation
from schemas.record import Origin
from schemas.wish import ModelWish, encode_wish, wish_key
from schemas.worker_report import ModelStatistics, WorkerReport, decode_report
from tests.integration.topic_client import Read, TopicClient


class ControlClient:
    """The control topic of a client's installation, which is there once a worker was."""

    def __init__(self, client: TopicClient) -> None:
        self._client = client
        self._topic = client.topics.control
        self._read: Read | None = None

    async def cancel(self, *origins: Origin, epoch: int | None = None, reason: str = "not needed") -> list[bytes]:
        """Cancel requests, in the life that their topics have now unless another one is given; the records' keys."""
        keys = []
        for origin in origins:
            of_epoch = await self._epoch(origin) if epoch is None else epoch
            keys.append(cancellation_key(origin, of_epoch))
            await self._client.write(self._topic, keys[-1], encode_cancellation(Cancellation(_now_ms(), reason)))
        return keys

    async def wish(self, wish: ModelWish, model: str) -> None:
        """Wish something of a model."""
        await self._client.write(self._topic, wish_key(model), encode_wish(wish))

    async def load(self, model: str, version: str = "") -> None:
        """Wish it loaded."""
        await self.wish(ModelWish("load", _now_ms(), version), model)

    async def unload(self, model: str, version: str = "") -> None:
        """Wish it unloaded."""
        await self.wish(ModelWish("unload", _now_ms(), version), model)

    async def removed(self, *keys: bytes) -> None:
        """Wait until the latest record of each key says that it is gone."""
        await (await self.read()).until(lambda read: all(key in _known(read) and not latest(read, key) for key in keys))

    async def report(self, wanted: Callable[[WorkerReport], bool]) -> WorkerReport:
        """Wait for a report like this, of any worker, from the topic's beginning on."""
        found: list[WorkerReport] = []

        def is_there(read: Read) -> bool:
            found.extend(report for _, report in reports(read) if report is not None and wanted(report))
            return bool(found)

        await (await self.read()).until(is_there)
        return found[-1]

    async def model(self, name: str, wanted: Callable[[ModelStatistics], bool]) -> ModelStatistics:
        """Wait for a report that tells this of a model."""
        report = await self.report(lambda report: any(model.name == name and wanted(model) for model in report.models))
        return next(model for model in report.models if model.name == name)

    async def read(self) -> Read:
        """The topic from its beginning on; always the same reader."""
        if self._read is None:
            self._read = await self._client.read(self._topic)
        return self._read

    async def _epoch(self, origin: Origin) -> int:
        model = self._client.topics.model_of(origin.topic)
        return (await self._client.provision(model))[model].epoch


def latest(read: Read, key: bytes) -> bytes | None:
    """The last value of a key that was read; None also for one that was removed. Fails for one that never was."""
    values: list[bytes | None] = [record.value for record in read.records if record.key == key]
    assert values, f"there is no record of {key!r} yet"
    return values[-1]


def _known(read: Read) -> set[bytes]:
    return {record.key for record in read.records}


def reports(read: Read) -> list[tuple[str, WorkerReport | None]]:
    """All reports, by worker, in order; None: it has stopped."""
    told = (decode_report(record.key, record.value) for record in read.records)
    return [report for report in told if report is not None]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
