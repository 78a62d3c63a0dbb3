"""Claims of idempotency keys: one claimant, one answer, crashes survived, no key lost for a day."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway import key_claims
from gateway.idempotency_key import Answer, Repeat, fingerprint, repeat_of
from gateway.key_claims import LEASE_MS, Claimed, KeyClaims
from schemas.errors import ErrorCode, InferenceError
from store import ObjectStore, StoreUnavailable, open_store

WINDOW_S = 86_400
REPEAT = repeat_of({b"idempotency-key": b"k"}, "", fingerprint("infer", "m", b"body"))
OTHER = Repeat(REPEAT.place, fingerprint("infer", "m", b"another body"))
JOB = (Answer("job"),)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path))


@pytest.fixture
def claims(store: ObjectStore) -> KeyClaims:
    return KeyClaims(store=store, window_s=WINDOW_S)


class Clock:
    """The wall clock of the module, set by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(key_claims, "_now_ms", clock)
    return clock


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_claims, "_PATIENCE_S", 0.1)


async def claimed(claims: KeyClaims, id_: str = "g-1", repeat: Repeat = REPEAT) -> Claimed:
    got = await claims.claim(repeat, id_)
    assert isinstance(got, Claimed)
    return got


async def refused(call: Any) -> InferenceError:
    with pytest.raises(InferenceError) as raised:
        await call
    return raised.value


async def test_a_repeat_is_answered_as_the_first(claims: KeyClaims) -> None:
    first = await claimed(claims)
    assert first.dead == ()
    await claims.tell(first, JOB)
    assert await claims.claim(REPEAT, "g-2") == JOB


async def test_another_request_under_the_same_key_is_a_mismatch_from_the_claim_on(claims: KeyClaims) -> None:
    first = await claimed(claims)
    assert (await refused(claims.claim(OTHER, "g-2"))).code is ErrorCode.IDEMPOTENCY_MISMATCH
    await claims.tell(first, JOB)
    assert (await refused(claims.claim(OTHER, "g-2"))).code is ErrorCode.IDEMPOTENCY_MISMATCH


async def test_while_the_first_is_being_taken_a_repeat_waits_shortly_then_is_a_conflict(claims: KeyClaims) -> None:
    first = await claimed(claims)
    error = await refused(claims.claim(REPEAT, "g-2"))
    assert (error.code, error.retry_after_s) == (ErrorCode.CONFLICT, 2)
    repeat = asyncio.ensure_future(claims.claim(REPEAT, "g-3"))
    await claims.tell(first, JOB)
    assert await repeat == JOB


async def test_of_many_at_once_one_is_the_claimant(claims: KeyClaims) -> None:
    async def one(number: int) -> Claimed | tuple[Answer, ...] | InferenceError:
        try:
            return await claims.claim(REPEAT, f"g-{number}")
        except InferenceError as error:
            return error

    got = await asyncio.gather(*(one(number) for number in range(20)))
    assert sum(isinstance(each, Claimed) for each in got) == 1
    assert all(each.code is ErrorCode.CONFLICT for each in got if isinstance(each, InferenceError))


async def test_a_dead_gateways_claim_is_taken_over_once_its_lease_is_over(claims: KeyClaims, clock: Clock) -> None:
    dead = await claimed(claims, "dead-1")
    clock.now_ms += LEASE_MS
    assert (await refused(claims.claim(REPEAT, "g-2"))).code is ErrorCode.CONFLICT
    clock.now_ms += 1
    second = await claimed(claims, "g-2")
    assert second.dead == (dead.claim,)
    assert (await refused(claims.claim(REPEAT, "g-3"))).code is ErrorCode.CONFLICT  # the new one has its own lease
    clock.now_ms += LEASE_MS + 1
    third = await claimed(claims, "g-3")
    assert third.dead == (dead.claim, second.claim)  # both may have produced
    await claims.tell(third, JOB)
    assert await claims.claim(REPEAT, "g-4") == JOB


async def test_a_key_given_back_is_free_at_once_and_remembers_who_died_before(claims: KeyClaims, clock: Clock) -> None:
    dead = await claimed(claims, "dead-1")
    clock.now_ms += LEASE_MS + 1
    second = await claimed(claims, "g-2")
    await claims.give_back(second)
    assert (await claimed(claims, "g-3")).dead == (dead.claim,)


async def test_a_claim_is_not_given_back_when_another_may_have_followed_it(claims: KeyClaims, clock: Clock) -> None:
    late = await claimed(claims, "g-1")
    clock.now_ms += LEASE_MS + 1
    follower = await claimed(claims, "g-2")
    await claims.give_back(late)
    await claims.tell(follower, JOB)
    assert await claims.claim(REPEAT, "g-3") == JOB  # and not a claim of its own in the gap


async def test_a_key_is_free_again_after_its_window(claims: KeyClaims, clock: Clock) -> None:
    await claims.tell(await claimed(claims), JOB)
    clock.now_ms += WINDOW_S * 1000
    assert await claims.claim(REPEAT, "g-2") == JOB
    clock.now_ms += 1
    anew = await claimed(claims, "g-3", OTHER)
    assert anew.dead == ()
    await claims.tell(anew, (Answer("another"),))
    assert await claims.claim(OTHER, "g-4") == (Answer("another"),)


async def test_keys_of_two_tenants_are_two(claims: KeyClaims) -> None:
    await claimed(claims)
    theirs = repeat_of({b"idempotency-key": b"k"}, "tenant", REPEAT.fingerprint)
    assert theirs.place != REPEAT.place
    await claimed(claims, "g-2", theirs)


async def test_a_store_that_is_away_is_unavailable(store: ObjectStore, claims: KeyClaims) -> None:
    def away(*args: Any, **options: Any) -> Any:
        raise StoreUnavailable("gone fishing")

    store.put = away  # type: ignore[method-assign]  # one failure, of one store
    assert (await refused(claims.claim(REPEAT, "g-1"))).code is ErrorCode.UNAVAILABLE


@pytest.mark.parametrize("key", [b"", b" ", b"a b", b"\xe4", b"x" * 256, b"a\n"])
def test_a_key_that_is_not_usable_names_itself(key: bytes) -> None:
    with pytest.raises(InferenceError) as raised:
        repeat_of({b"idempotency-key": key}, "", "")
    assert (raised.value.code, raised.value.field) == (ErrorCode.INVALID_REQUEST, "idempotency-key")


def test_a_fingerprint_tells_requests_apart_by_all_that_makes_them() -> None:
    prints = {
        fingerprint("infer", "m", b"x"),
        fingerprint("batch", "m", b"x"),
        fingerprint("infer", "n", b"x"),
        fingerprint("infer", "m", b"y"),
        fingerprint("infer", "m", b"x", version="1"),
        fingerprint("infer", "m", b"x", header_length=1),
    }
    assert len(prints) == 6
    assert fingerprint("infer", "m", b"x") == fingerprint("infer", "m", b"x")
