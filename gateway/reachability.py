"""Reachability: whether Kafka can be reached, so that callers need not wait to learn that it cannot.

Told of batches that failed and asked how long one is under way; then it asks Kafka itself, until it answers. Knows no
Kafka client and no records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 1.0
_OVERDUE_S = 2.0  # an acknowledgement takes milliseconds; after so long it is worth a question
_PROBE_TIMEOUT_S = 2.0
_PROBE_EVERY_S = 0.5


class Reachability:
    """`is_away` is what callers look at. `watch` keeps it true to life."""

    def __init__(
        self,
        *,
        probe: Callable[[], Awaitable[bool]],
        overdue_s: Callable[[float], float],
        on_away: Callable[[], None],
    ) -> None:
        """`probe` asks Kafka for anything: False or an exception of its own choice means no answer.

        `overdue_s(now_s)` is how long the oldest batch has been under way; `on_away` is called when Kafka is lost.
        """
        self._probe = probe
        self._overdue_s = overdue_s
        self._on_away = on_away
        self._doubt = asyncio.Event()
        self.is_away = False

    def note_failure(self) -> None:
        """A batch failed in a way that tells of the connection: calls fail at once until a probe succeeds."""
        self._set_away(True)
        self._doubt.set()

    async def watch(self) -> None:
        """For ever: look for overdue batches; once in doubt, probe until there is an answer."""
        while True:
            await self._wait_for_doubt()
            while not await self._answers():
                self._set_away(True)
                await asyncio.sleep(_PROBE_EVERY_S)
            self._doubt.clear()
            self._set_away(False)

    async def _wait_for_doubt(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._doubt.wait()
                    return
            except TimeoutError:
                if self._overdue_s(time.monotonic()) >= _OVERDUE_S:
                    return

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                return await self._probe()
        except TimeoutError:
            return False

    def _set_away(self, is_away: bool) -> None:
        if is_away == self.is_away:
            return
        self.is_away = is_away
        if is_away:
            _log.warning("kafka_away")
            self._on_away()
        else:
            _log.info("kafka_back")
