"""Retrying: doing something again and again while Kafka or the object store is away. Knows neither."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from gateway.kafka_client import BrokerError
from schemas.errors import ErrorCode, InferenceError
from store.object_store import StoreError

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_FIRST_WAIT_S = 0.2
_LAST_WAIT_S = 5.0


async def insist(work: Callable[[], Awaitable[T]], *, event: str) -> T:
    """Do it until it works; the log tells of the first failure as `event`. What waiting cannot mend is raised."""
    wait_s, failed = _FIRST_WAIT_S, False
    while True:
        try:
            return await work()
        except (BrokerError, StoreError, TimeoutError, InferenceError) as error:
            if isinstance(error, InferenceError) and error.code is not ErrorCode.UNAVAILABLE:
                raise
            if not failed:
                _log.warning(event, error=repr(error))
            failed = True
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LAST_WAIT_S)
