"""Access: from what a request proves to the Caller that it comes from. Knows no route; headers in, callers out."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gateway.api_keys import PREFIX, ApiKeys
from gateway.caller import ANYONE, Caller
from gateway.token_rules import TokenRules, VerifiedToken
from gateway.watched_file import WatchedFile
from schemas.errors import ErrorCode, InferenceError

if TYPE_CHECKING:
    from gateway.key_set import KeySet

_log = structlog.get_logger(__name__)

_LOOK_EVERY_S = 1.0
_REMEMBERED = 4096
_REMEMBERED_S = 60.0  # a token that was verified is not verified again for so long
_PREFIX = PREFIX.encode()


class Access:
    """Who sends a request. Without keys and tokens everyone is ANYONE, at no cost."""

    def __init__(
        self,
        *,
        keys_file: Path | None = None,
        key_set: KeySet | None = None,
        rules: TokenRules | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`key_set` and `rules` belong together: None for no tokens. `now_s` is Unix time in seconds."""
        self._file = None if keys_file is None else WatchedFile(keys_file)
        self._keys = ApiKeys()
        self._key_set = key_set
        self._rules = rules
        self._now_s = now_s
        self._verified: dict[bytes, VerifiedToken] = {}  # by the token's hash: a copy of memory gives nothing away
        self._generation = 0
        self.is_open = keys_file is None and key_set is None

    async def start(self) -> None:
        """Read the file of keys. Raises InferenceError when it cannot be used: nothing is served with half of it."""
        if self._file is not None:
            await self._read_keys()

    async def follow_file(self) -> None:
        """For ever: take a changed file of keys in; from a broken one nothing is taken, the old keys hold."""
        if self._file is None:
            return
        told = ""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self._read_keys()
                told = ""
            except InferenceError as error:
                if error.message != told:
                    _log.error("keep_old_api_keys", keys=len(self._keys), error=error.message, remedy=error.remedy)
                told = error.message

    async def caller(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Who sent these headers (names in lower case).

        Raises InferenceError: UNAUTHENTICATED, or UNAVAILABLE while a token's keys cannot be had. Waits only for keys
        that are not known yet.
        """
        if self.is_open:
            return ANYONE
        credential = _credential(headers)
        if credential.startswith(_PREFIX):
            return self._holder(credential)
        if self._key_set is None or self._rules is None:
            raise _refused("it is no API key", "send an API key, as Authorization: Bearer tgk_... or x-api-key")
        digest = hashlib.sha256(credential).digest()
        if self._generation != self._key_set.generation:
            self._verified.clear()
            self._generation = self._key_set.generation
        known = self._verified.get(digest)
        if known is not None and self._now_s() < known.expires_s:
            return known.caller
        from gateway.web_tokens import key_id, verify  # here: see gateway/token_rules.py

        token = verify(credential, await self._key_set.key(key_id(credential)), self._rules)
        self._remember(digest, token)
        return token.caller

    def _holder(self, key: bytes) -> Caller:
        caller = self._keys.caller(key)
        if caller is None:
            raise _refused("nobody holds this API key", "check the key; one that was withdrawn needs replacing")
        return caller

    def _remember(self, digest: bytes, token: VerifiedToken) -> None:
        self._verified.pop(digest, None)
        while len(self._verified) >= _REMEMBERED:
            del self._verified[next(iter(self._verified))]  # the oldest
        until_s = min(token.expires_s, self._now_s() + _REMEMBERED_S)
        self._verified[digest] = VerifiedToken(token.caller, until_s)

    async def _read_keys(self) -> None:
        assert self._file is not None  # asked before
        text = await self._file.changed()
        if text is not None:
            self._keys = ApiKeys.parse(text)
            _log.info("read_api_keys", path=str(self._file.path), keys=len(self._keys))


def _credential(headers: Mapping[bytes, bytes]) -> bytes:
    sent = headers.get(b"authorization")
    if sent is not None:
        scheme, _, credential = sent.partition(b" ")
        if scheme.lower() != b"bearer" or not (credential := credential.strip()):
            raise _refused("the header Authorization is not of the kind Bearer", "send Authorization: Bearer <key>")
        return credential
    key = headers.get(b"x-api-key", b"").strip()
    if not key:
        raise _refused("nothing says who sends the request", "send an API key, or Authorization: Bearer <token>")
    return key


def _refused(what: str, remedy: str) -> InferenceError:
    return InferenceError(ErrorCode.UNAUTHENTICATED, what, field="authorization", remedy=remedy)
