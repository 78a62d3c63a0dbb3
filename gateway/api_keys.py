"""ApiKeys: who holds which API key, from a file of hashes. Pure: text in, callers out; knows no file and no HTTP.

A key is `tgk_` and 32 random bytes. Because it is random, its plain SHA-256 can neither be guessed nor looked up: a
salt or a slow hash would cost each request and protect nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

import msgspec

from gateway.caller import OPERATIONS, Caller
from schemas.errors import InferenceError, invalid

PREFIX = "tgk_"
_KEY_BYTES = 32
_HEAD_BYTES = 8
_MAX_KEY_CHARS = 200  # nobody's key is longer; what is longer is not even hashed
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(r"[!-~]{0,200}")


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key of the file: `name` for logs, `tenant` whose jobs it makes, `scopes` as `Caller` has them."""

    name: str
    sha256: str
    scopes: tuple[str, ...]
    tenant: str = ""


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: {"keys": [...]}."""

    keys: tuple[KeyEntry, ...] = ()


class ApiKeys:
    """Callers by the hash of their key: found by its head, told apart by all of it, in constant time."""

    def __init__(self, entries: tuple[KeyEntry, ...] = ()) -> None:
        """Raises InferenceError(INVALID_REQUEST) for an entry that cannot be used."""
        self._by_head: dict[bytes, tuple[bytes, Caller]] = {}
        for entry in entries:
            _check(entry)
            digest = bytes.fromhex(entry.sha256)
            if digest[:_HEAD_BYTES] in self._by_head:
                raise _bad("sha256", entry.name, "two entries have the same key", "make a key for each: make-key")
            self._by_head[digest[:_HEAD_BYTES]] = digest, Caller(entry.tenant, entry.name, entry.scopes)

    def __len__(self) -> int:
        return len(self._by_head)

    @classmethod
    def parse(cls, text: bytes) -> ApiKeys:
        """Read the file's text. Raises InferenceError(INVALID_REQUEST) saying what is wrong with it."""
        try:
            return cls(msgspec.json.decode(text, type=KeyFile).keys)
        except msgspec.DecodeError as cause:  # its message names the place, and never quotes the text
            raise invalid(
                f"the file of API keys cannot be read: {cause}",
                field="api_keys_file",
                remedy='write {"keys": [...]} with entries as `python -m gateway make-key` prints them',
            ) from cause

    def caller(self, key: bytes) -> Caller | None:
        """Who holds this key; None: nobody. How long it takes says nothing of how near a wrong key is."""
        if len(key) > _MAX_KEY_CHARS:
            return None
        digest = hashlib.sha256(key).digest()
        found = self._by_head.get(digest[:_HEAD_BYTES])
        if found is None or not hmac.compare_digest(found[0], digest):
            return None
        return found[1]


def make_key(*, name: str, tenant: str, scopes: tuple[str, ...]) -> tuple[str, KeyEntry]:
    """A new key and its entry for the file. The key is not kept anywhere. Raises InferenceError(INVALID_REQUEST)."""
    key = PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry = KeyEntry(name, hashlib.sha256(key.encode()).hexdigest(), scopes, tenant)
    _check(entry)
    return key, entry


def check_tenant(tenant: str) -> str:
    """Return `tenant`, or raise InferenceError(INVALID_REQUEST) when it cannot travel in a header."""
    if not _TENANT.fullmatch(tenant):
        raise invalid(
            "the tenant's name is not usable",
            field="tenant",
            value=tenant,
            remedy="use 1 to 200 printable ASCII characters without spaces",
        )
    return tenant


def _check(entry: KeyEntry) -> None:
    check_tenant(entry.tenant)
    if not entry.name or not entry.name.isprintable() or len(entry.name) > _MAX_KEY_CHARS:
        raise _bad("name", entry.name, "the name is empty, too long or not printable", "name who uses the key")
    if not _SHA256.fullmatch(entry.sha256):
        raise _bad("sha256", entry.name, "the hash is not 64 hexadecimal digits", "take it from make-key as it is")
    if not entry.scopes:
        raise _bad("scopes", entry.name, "there are no scopes, so the key could do nothing", 'give some: ["infer:*"]')
    for scope in entry.scopes:
        operation, colon, models = scope.partition(":")
        if not (colon and models and (operation == "*" or operation in OPERATIONS)):
            raise _bad(
                "scopes",
                scope,
                f"a scope of {entry.name!r} is not operation:model",
                f"use one of {', '.join(OPERATIONS)} or *, a colon, and a model or a pattern: infer:resnet*",
            )


def _bad(field: str, value: str, what: str, remedy: str) -> InferenceError:
    return invalid(f"an API key cannot be used: {what}", field=field, value=value, remedy=remedy)
