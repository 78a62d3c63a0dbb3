"""Access: who a caller is, by key or token; what is not proved is refused, and nothing configured costs nothing."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import Access
from gateway.api_keys import ApiKeys, KeyEntry, make_key
from gateway.caller import ANYONE, Caller
from gateway.key_set import KeySet, parse_keys
from gateway.token_rules import TokenRules
from schemas.errors import ErrorCode, InferenceError

ISSUER, AUDIENCE = "https://issuer.example", "tidegate"
RULES = TokenRules(ISSUER, AUDIENCE, frozenset({"RS256", "ES256"}), "org.tenant", "scope", 5.0)
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA_2 = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def key_file(*entries: KeyEntry) -> bytes:
    return msgspec.json.encode({"keys": entries})


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    document: dict[str, Any] = json.loads(algorithm.to_jwk(key.public_key()))
    return {**document, "kid": kid, **more}


def claims(**changes: Any) -> dict[str, Any]:
    said = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": int(time.time()) + 300,
        "sub": "robot",
        "org": {"tenant": "acme"},
        "scope": "openid infer:resnet* jobs:*",
        **changes,
    }
    return {name: value for name, value in said.items() if value is not None}


def token(key: Any = RSA, kid: str = "a", algorithm: str = "RS256", **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers={"kid": kid} if kid else None)


class Issuer:
    """Serves a key set as a transport of httpx."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys)
        self.status = 200
        self.asked = 0

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return httpx.Response(self.status, json={"keys": self.keys})


def access_of(issuer: Issuer, *, now_s: list[float] | None = None, wall_s: list[float] | None = None) -> Access:
    clock, wall = now_s or [0.0], wall_s
    keys = KeySet("https://issuer.example/jwks", refresh_s=10, now_s=lambda: clock[0], transport=issuer.transport())
    return Access(key_set=keys, rules=RULES, now_s=(lambda: wall[0]) if wall else time.time)


def bearer(credential: str) -> Mapping[bytes, bytes]:
    return {b"authorization": b"Bearer " + credential.encode()}


async def refusal(access: Access, headers: Mapping[bytes, bytes]) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        await access.caller(headers)
    return caught.value


async def test_without_configuration_everyone_is_anyone() -> None:
    assert await Access().caller({}) is ANYONE
    assert await Access().caller(bearer("whatever")) is ANYONE


async def test_a_key_tells_its_caller_in_either_header(tmp_path: Path) -> None:
    key, entry = make_key(name="batch", tenant="acme", scopes=("infer:*",))
    (tmp_path / "keys").write_bytes(key_file(entry))
    access = Access(keys_file=tmp_path / "keys")
    await access.start()
    expected = Caller("acme", "batch", ("infer:*",))
    assert await access.caller(bearer(key)) == expected
    assert await access.caller({b"x-api-key": key.encode()}) == expected
    assert await access.caller({b"authorization": b"bearer  " + key.encode()}) == expected
    for headers in (
        {},
        {b"x-api-key": b""},
        bearer(key[:-1]),
        bearer(key + "x"),
        bearer("tgk_"),
        bearer("x" * 100_000),
        {b"authorization": b"Basic " + key.encode()},
        {b"authorization": b"Bearer "},
        {b"authorization": b"\xff\xfe"},
    ):
        error = await refusal(access, headers)
        assert error.code is ErrorCode.UNAUTHENTICATED
        assert error.remedy
        assert key not in error.message


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"sha256": "12"}, "sha256"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["infer"]}, "scopes"),
        ({"scopes": ["infer:"]}, "scopes"),
        ({"scopes": ["inger:*"]}, "scopes"),
        ({"tenant": "two words"}, "tenant"),
        ({"tennant": "acme"}, "api_keys_file"),
        ({"sha256": None}, "api_keys_file"),
    ],
)
def test_a_bad_entry_is_named(change: dict[str, Any], field: str) -> None:
    _, entry = make_key(name="batch", tenant="acme", scopes=("infer:*",))
    text = json.dumps({"keys": [{**msgspec.to_builtins(entry), **change}]}).encode()
    with pytest.raises(InferenceError) as caught:
        ApiKeys.parse(text)
    assert caught.value.field == field
    assert caught.value.remedy


def test_the_same_key_twice_is_refused() -> None:
    _, entry = make_key(name="batch", tenant="", scopes=("infer:*",))
    with pytest.raises(InferenceError, match="same key"):
        ApiKeys.parse(key_file(entry, msgspec.structs.replace(entry, name="other")))


async def test_a_changed_file_is_read_and_a_broken_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access._LOOK_EVERY_S", 0.005)
    path = tmp_path / "keys"
    (first, one), (second, two) = (make_key(name=name, tenant="", scopes=("*:*",)) for name in "ab")
    path.write_bytes(key_file(one))
    access = Access(keys_file=path)
    await access.start()
    following = asyncio.create_task(access.follow_file())

    async def until(key: str, *, known: bool) -> None:
        async with asyncio.timeout(5):
            while True:
                try:
                    await access.caller(bearer(key))
                    if known:
                        return
                except InferenceError:
                    if not known:
                        return
                await asyncio.sleep(0.005)

    def replace(text: bytes) -> None:
        path.with_suffix(".new").write_bytes(text)
        os.replace(path.with_suffix(".new"), path)

    replace(key_file(one, two))
    await until(second, known=True)
    replace(b'{"keys": [')
    await asyncio.sleep(0.05)  # ten looks at it: that nothing happens can only be waited for
    await until(first, known=True)
    path.unlink()
    await asyncio.sleep(0.05)
    await until(second, known=True)
    replace(key_file(two))
    await until(first, known=False)
    await until(second, known=True)
    following.cancel()


async def test_a_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match="cannot be read"):
        await Access(keys_file=tmp_path / "none").start()


async def test_a_token_tells_tenant_name_and_scopes() -> None:
    access = access_of(Issuer(jwk(RSA, "a"), jwk(EC, "e")))
    expected = Caller("acme", "robot", ("infer:resnet*", "jobs:*"))
    assert await access.caller(bearer(token())) == expected
    assert await access.caller(bearer(token(EC, "e", "ES256"))) == expected
    listed = await access.caller(bearer(token(scope=["read:*", 7, "openid"])))
    assert listed.scopes == ("read:*",)


@pytest.mark.parametrize(
    "sent",
    [
        token(iss="https://other.example"),
        token(aud="other"),
        token(aud=None),
        token(iss=None),
        token(exp=None),
        token(exp=int(time.time()) - 60),
        token(exp="soon"),
        token(nbf=int(time.time()) + 600),
        token(RSA_2),  # another's signature under a known name
        token(algorithm="RS512"),  # not in the list
        token(org=None),
        token(org={"tenant": ""}),
        token(org={"tenant": "two words"}),
        token(kid="unknown"),
        token(kid=""),  # there are two keys: which?
        jwt.encode(claims(), "", algorithm="none", headers={"kid": "a"}),
        jwt.encode(claims(), "a secret of thirty-two characters", algorithm="HS256", headers={"kid": "a"}),
        token(EC, "a", "ES256"),  # the key's type is not the algorithm's
        "a.b.c",
        "x" * 20_000,
    ],
)
async def test_a_token_that_does_not_hold_is_refused(sent: str) -> None:
    error = await refusal(access_of(Issuer(jwk(RSA, "a"), jwk(EC, "e"))), bearer(sent))
    assert error.code is ErrorCode.UNAUTHENTICATED
    assert error.remedy
    assert sent not in error.message


async def test_a_public_key_is_no_secret_to_sign_with() -> None:
    """The classic confusion: the text of the public key taken for the secret of HS256."""
    import base64
    import hashlib
    import hmac

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = part(b'{"alg":"HS256","kid":"a"}') + b"." + part(json.dumps(claims()).encode())
    forged = signed + b"." + part(hmac.new(pem, signed, hashlib.sha256).digest())
    error = await refusal(access_of(Issuer(jwk(RSA, "a"))), bearer(forged.decode()))
    assert error.code is ErrorCode.UNAUTHENTICATED


async def test_a_key_that_is_for_one_algorithm_takes_no_other() -> None:
    issuer = Issuer(jwk(RSA, "a", alg="RS512"))
    assert (await refusal(access_of(issuer), bearer(token()))).code is ErrorCode.UNAUTHENTICATED


async def test_an_unknown_key_asks_the_issuer_again_but_not_too_often() -> None:
    clock, issuer = [0.0], Issuer(jwk(RSA, "a"))
    access = access_of(issuer, now_s=clock)
    await access.caller(bearer(token()))
    issuer.keys = [jwk(RSA_2, "b")]
    assert (await refusal(access, bearer(token(RSA_2, "b")))).code is ErrorCode.UNAUTHENTICATED
    assert issuer.asked == 1
    clock[0] = 11
    assert (await access.caller(bearer(token(RSA_2, "b")))).tenant == "acme"
    # What was verified with a key that is withdrawn holds no longer, be it remembered or not.
    assert (await refusal(access, bearer(token()))).code is ErrorCode.UNAUTHENTICATED
    assert issuer.asked == 2


async def test_callers_at_the_same_time_share_one_fetch() -> None:
    issuer = Issuer(jwk(RSA, "a"))
    access = access_of(issuer)
    await asyncio.gather(*(access.caller(bearer(token(sub=f"n{number}"))) for number in range(20)))
    assert issuer.asked == 1


async def test_old_keys_hold_while_the_issuer_is_away() -> None:
    clock, issuer = [0.0], Issuer(jwk(RSA, "a"))
    access = access_of(issuer, now_s=clock)
    await access.caller(bearer(token()))
    issuer.status = 500
    clock[0] = 1000
    assert (await access.caller(bearer(token(sub="other")))).name == "other"
    await asyncio.sleep(0)
    assert (await refusal(access, bearer(token(kid="new")))).code is ErrorCode.UNAUTHENTICATED


async def test_without_any_key_callers_are_told_to_come_again() -> None:
    issuer = Issuer()
    error = await refusal(access_of(issuer), bearer(token()))
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.retry_after_s == 10


async def test_a_remembered_token_ends_with_its_time() -> None:
    wall = [time.time()]
    access = access_of(Issuer(jwk(RSA, "a")), wall_s=wall)
    sent = bearer(token(exp=int(wall[0]) + 30))
    await access.caller(sent)
    wall[0] += 34.0
    assert (await access.caller(sent)).name == "robot"  # within the leeway
    wall[0] += 2.0
    access_again = access._verified  # looked at, since the library's own clock has not moved
    assert all(each.expires_s <= wall[0] for each in access_again.values())


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.access._REMEMBERED", 3)
    access = access_of(Issuer(jwk(EC, "e")))
    for number in range(8):
        await access.caller(bearer(token(EC, "e", "ES256", sub=f"n{number}")))
    assert len(access._verified) == 3


def test_a_key_set_leaves_out_what_verifies_nothing() -> None:
    good, other = jwk(RSA, "a"), jwk(RSA_2, "enc", use="enc")
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    assert set(parse_keys(json.dumps({"keys": [good, other, secret, {"kty": "??"}, 5]}).encode())) == {"a"}
    for text in (b"", b"[]", b"{}", b'{"keys": 5}', b'{"keys": []}', json.dumps({"keys": [secret]}).encode()):
        with pytest.raises(InferenceError, match="key set"):
            parse_keys(text)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_bytes_are_a_key(authorization: bytes, key: bytes) -> None:
    _, entry = make_key(name="batch", tenant="", scopes=("*:*",))
    assert ApiKeys((entry,)).caller(key) is None

    async def ask() -> None:
        access = access_of(Issuer(jwk(EC, "e")))
        error = await refusal(access, {b"authorization": authorization, b"x-api-key": key})
        assert error.code is ErrorCode.UNAUTHENTICATED

    asyncio.run(ask())
