"""KeySet: the public keys that sign JSON web tokens, from a URL or a file; old ones are kept while it is away.

Knows nothing of tokens beyond the id of their key, and no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import jwt
import msgspec
import structlog

from gateway.watched_file import WatchedFile
from schemas.errors import ErrorCode, InferenceError, invalid

_log = structlog.get_logger(__name__)

_TIMEOUT_S = 5.0
_MAX_BYTES = 1024 * 1024
_MAX_KEYS = 1000

Keys = Mapping[str, jwt.PyJWK]


class KeySet:
    """Keys by their id. Fetched at the first token, again when a token names a key that is not known, and once in a
    while so that keys which were withdrawn go; never more often than `refresh_s`.
    """

    def __init__(
        self,
        source: str,
        *,
        refresh_s: float,
        max_age_s: float = 300.0,
        now_s: Callable[[], float] = time.monotonic,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`source`: a URL beginning with http, or a path. `transport`: see httpx, for tests."""
        self._source = source
        self._refresh_s = refresh_s
        self._max_age_s = max_age_s
        self._now_s = now_s
        self._transport = transport
        self._file = None if is_url(source) else WatchedFile(Path(source))
        self._keys: Keys = {}
        self._tried_s = float("-inf")
        self._read: asyncio.Task[None] | None = None
        self.generation = 0  # grows with each change: what was verified before may hold no longer

    async def key(self, kid: str) -> jwt.PyJWK:
        """The key of this id; a token without an id may be signed with the only key that there is.

        Raises InferenceError: UNAUTHENTICATED for an unknown key, UNAVAILABLE while no keys could be had at all.
        Cancel-safe: a fetch under way goes on for the others who wait for it.
        """
        found = self._find(kid)
        age_s = self._now_s() - self._tried_s
        if found is None and (age_s >= self._refresh_s or self._read is not None):
            await asyncio.shield(self._refresh())
            found = self._find(kid)
        elif age_s >= self._max_age_s:
            self._refresh()  # nobody waits for it: what is known holds until it is there
        if found is not None:
            return found
        if not self._keys:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                "the keys that sign tokens cannot be had at present",
                remedy="try again in a moment, or use an API key",
                retry_after_s=self._refresh_s,
            )
        raise InferenceError(
            ErrorCode.UNAUTHENTICATED,
            f"no key {kid!r} is known that could have signed the token" if kid else "the token names no key",
            field="authorization",
            remedy="get a new token; a key that is new is known within a few seconds",
        )

    def _find(self, kid: str) -> jwt.PyJWK | None:
        if kid:
            return self._keys.get(kid)
        return next(iter(self._keys.values())) if len(self._keys) == 1 else None

    def _refresh(self) -> asyncio.Task[None]:
        if self._read is None:
            self._tried_s = self._now_s()
            self._read = asyncio.get_running_loop().create_task(self._update(), name="read key set")
            self._read.add_done_callback(self._note_end)
        return self._read

    def _note_end(self, read: asyncio.Task[None]) -> None:
        self._read = None

    async def _update(self) -> None:
        try:
            text = await self._fetch()
            keys = self._keys if text is None else parse_keys(text)
        except (httpx.HTTPError, httpx.InvalidURL, InferenceError, TimeoutError) as error:
            what = error.message if isinstance(error, InferenceError) else f"{type(error).__name__}: {error}"
            _log.warning("keep_old_key_set", source=self._source, keys=len(self._keys), error=what)
            return
        if keys.keys() != self._keys.keys() or any(_data(keys[kid]) != _data(self._keys[kid]) for kid in keys):
            self._keys = keys
            self.generation += 1
            _log.info("read_key_set", source=self._source, keys=sorted(keys))

    async def _fetch(self) -> bytes | None:
        if self._file is not None:
            return await self._file.changed()
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx.AsyncClient(timeout=_TIMEOUT_S, transport=self._transport) as http,
            http.stream("GET", self._source) as response,
        ):
            response.raise_for_status()
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > _MAX_BYTES:
                    raise _no_keys(f"it has more than {_MAX_BYTES} bytes")
            return bytes(body)


def is_url(source: str) -> bool:
    """Whether a key set is fetched rather than read from a file."""
    return source.startswith(("http://", "https://"))


def parse_keys(text: bytes) -> Keys:
    """The usable keys of a key set; others, of other kinds or for encryption, are left out.

    Raises InferenceError(INVALID_REQUEST) when it is no key set, or has no usable key.
    """
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as cause:
        raise _no_keys(f"it is no JSON object: {cause}") from cause
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise _no_keys("it has no list of keys")
    keys = {}
    for number, entry in enumerate(listed[:_MAX_KEYS]):
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        keys[key.key_id or f"#{number}"] = key
    if not keys:
        raise _no_keys("none of its keys can verify a signature")
    return keys


def _data(key: jwt.PyJWK) -> Mapping[str, Any]:
    data: Mapping[str, Any] = key._jwk_data  # the library has no other way to tell what was written
    return data


def _no_keys(what: str) -> InferenceError:
    return invalid(f"the key set cannot be used: {what}", field="jwt_jwks", remedy="name a JSON web key set (RFC 7517)")
