"""Audit: who managed what, when and from where. What cannot be recorded is not done.

Each operation leaves two records of one id: before it is tried, and how it ended. Knows no operation and no HTTP.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import structlog

from gateway.caller import Caller
from gateway.kafka_client import BrokerError
from schemas.errors import ErrorCode, InferenceError
from schemas.record import rfc3339

_log = structlog.get_logger(__name__)

CONFIGS = {"retention.ms": str(400 * 24 * 3600 * 1000), "cleanup.policy": "delete"}  # a year, and time to look


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is written, as JSON. `outcome`: tried, done, refused (by us, see `detail`) or failed. `origin`: the
    caller's address.
    """

    id: str
    at: str
    caller: str
    tenant: str
    operation: str
    target: str
    origin: str
    outcome: str
    detail: str = ""


class Audit:
    """Writes audit records, to Kafka and to the log as the event `audit`."""

    def __init__(self, *, append: Callable[[bytes, bytes], Awaitable[None]]) -> None:
        """`append(key, value)` returns when the record is durable; it raises BrokerError or TimeoutError."""
        self._append = append

    @contextlib.asynccontextmanager
    async def of(self, caller: Caller, operation: str, target: str, *, origin: str) -> AsyncIterator[None]:
        """Do an operation inside. Raises InferenceError(UNAVAILABLE) before it begins when it cannot be recorded.

        How it ended is recorded as far as that is possible: it cannot be undone.
        """

        def record(outcome: str, detail: str = "") -> AuditRecord:
            at = rfc3339(time.time_ns() // 1_000_000)
            return AuditRecord(id_, at, caller.name, caller.tenant, operation, target, origin, outcome, detail)

        id_ = secrets.token_hex(8)
        try:
            await self._write(record("tried"))
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"the audit record cannot be written, so this is not done: {cause!r}",
                remedy="try again in a moment",
            ) from cause
        try:
            yield
        except InferenceError as error:
            refused = error.code in (ErrorCode.PERMISSION_DENIED, ErrorCode.INVALID_REQUEST, ErrorCode.MODEL_NOT_FOUND)
            await self._write_end(record("refused" if refused else "failed", f"{error.code.wire}: {error.message}"))
            raise
        except BaseException as error:
            await self._write_end(record("failed", type(error).__name__))
            raise
        await self._write_end(record("done"))

    async def _write_end(self, record: AuditRecord) -> None:
        try:
            await self._write(record)
        except (BrokerError, TimeoutError) as error:
            _log.error("audit_incomplete", id=record.id, error=repr(error))

    async def _write(self, record: AuditRecord) -> None:
        _log.info("audit", **msgspec.to_builtins(record))
        await self._append(record.id.encode(), msgspec.json.encode(record))


def log_refusal(operation: str, *, origin: str, error: InferenceError) -> None:
    """Note in the log, and only there, that somebody was turned away: a topic could be filled by anyone that way."""
    _log.warning("audit", operation=operation, origin=origin, outcome="refused", detail=error.message)
