"""KeyClaims: who produces the answer for an idempotency key, and what it was. No database: conditional puts decide.

A key's claims are numbered. The first one stands for the key's window; a later number is claimed only when the former
one is older than the window, or has told nothing for the lease: its gateway has died. What a claim was answered lies
beside it. Knows no route and no Kafka client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec
import structlog

from gateway.idempotency_key import Answer, KeyClaim, Repeat
from schemas.errors import ErrorCode, InferenceError
from store.object_store import ObjectNotFound, ObjectStore, StoreError

_log = structlog.get_logger(__name__)

LEASE_MS = 60_000  # longer than a living gateway needs from its claim to the answer, broker's patience included
PREFIX = "idempotency"
_PATIENCE_S = 2.0
_FIRST_PAUSE_S = 0.03
_LAST_PAUSE_S = 0.4
_MAX_PATIENT = 256
_MAX_CLAIMS = 1000  # of one key: as many gateways must have died of it, or days have passed

_claim_decoder = msgspec.json.Decoder(KeyClaim)
_answers_decoder = msgspec.json.Decoder(tuple[Answer, ...])


class Claimed(msgspec.Struct, frozen=True):
    """The key is ours: produce the answer and tell it. `dead` are claims before it whose gateways told nothing: their
    requests may have been taken.
    """

    place: str
    claim: KeyClaim
    dead: tuple[KeyClaim, ...] = ()


class KeyClaims:
    """Claims of keys, in the object store; all access to it happens in threads."""

    def __init__(self, *, store: ObjectStore, window_s: float) -> None:
        """`window_s`: how long a key means the same request."""
        self._store = store
        self._window_ms = int(window_s * 1000)
        self._patient = 0

    async def claim(self, repeat: Repeat, id_: str) -> Claimed | tuple[Answer, ...]:
        """Claim a key for the requests whose ids begin with `id_`, or what its claimant has been answered.

        Raises InferenceError: IDEMPOTENCY_MISMATCH for another request under the same key, CONFLICT while the first is
        still being taken, after a short wait, UNAVAILABLE when the store is. Cancel-safe.
        """
        number, pause_s = 0, _FIRST_PAUSE_S
        dead: list[KeyClaim] = []
        patient_until_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while number < _MAX_CLAIMS:
            place = f"{repeat.place}/{number:04d}"
            mine = KeyClaim(repeat.fingerprint, id_, _now_ms())
            if await self._put(f"{place}/claim", mine):
                return Claimed(place, mine, tuple(dead))
            raw = await self._get(f"{place}/claim")
            if raw is None:  # given back in between
                continue
            claim = _claim_decoder.decode(raw)
            if mine.at_ms - claim.at_ms > self._window_ms:
                number += 1
                continue
            if claim.fingerprint != repeat.fingerprint:
                raise _mismatch()
            if (raw := await self._get(f"{place}/answers")) is not None:
                return _answers_decoder.decode(raw)
            if mine.at_ms - claim.at_ms > LEASE_MS:
                number += 1
                dead.append(claim)
                continue
            await self._be_patient(patient_until_s, pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        raise _still_taken()

    async def tell(self, claimed: Claimed, answers: Sequence[Answer]) -> None:
        """Tell what a claim was answered. Raises InferenceError(UNAVAILABLE)."""
        await self._put(f"{claimed.place}/answers", tuple(answers))

    async def give_back(self, claimed: Claimed) -> None:
        """Let the key be claimed again: nothing was taken. What cannot be given back is free when its lease is over."""
        if _now_ms() - claimed.claim.at_ms > LEASE_MS // 2:  # the next number may be claimed by now
            return
        try:
            await asyncio.to_thread(self._store.delete, f"{claimed.place}/claim")
        except StoreError as error:
            _log.warning("give_key_back_failed", place=claimed.place, error=repr(error))

    async def _be_patient(self, until_s: float, pause_s: float) -> None:
        if self._patient >= _MAX_PATIENT or asyncio.get_running_loop().time() + pause_s > until_s:
            raise _still_taken()
        self._patient += 1
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._patient -= 1

    async def _put(self, key: str, what: object) -> bool:
        try:
            return await asyncio.to_thread(self._store.put, key, msgspec.json.encode(what), if_absent=True)
        except StoreError as cause:
            raise _unavailable(cause) from cause

    async def _get(self, key: str) -> bytes | None:
        try:
            return await asyncio.to_thread(self._store.get, key)
        except ObjectNotFound:
            return None
        except StoreError as cause:
            raise _unavailable(cause) from cause


def _mismatch() -> InferenceError:
    return InferenceError(
        ErrorCode.IDEMPOTENCY_MISMATCH,
        "this idempotency key was used for another request",
        field="idempotency-key",
        remedy="send the same model and body again, or another key for another request",
    )


def _still_taken() -> InferenceError:
    return InferenceError(
        ErrorCode.CONFLICT,
        "the first request with this idempotency key is still being taken",
        field="idempotency-key",
        remedy="send it again, with the same key",
        retry_after_s=2,
    )


def _unavailable(cause: StoreError) -> InferenceError:
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        f"the object store, which keeps idempotency keys, does not answer: {cause}",
        remedy="try again in a moment, with the same key",
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
