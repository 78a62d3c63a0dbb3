"""WebhookRules: which URLs may be webhooks. The same for a header, for a plain producer's record, and at each attempt.

Resolves no name: a URL that passes here may still lead to an address that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.webhook_address import Network, literal_address, refusal
from schemas.errors import InferenceError, invalid
from schemas.record import WEBHOOK_HEADER

if TYPE_CHECKING:
    import httpx

_MAX_CHARS = 2048
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|[0-9a-f:.]+")  # a name, or IPv6
_REMEDY = "send the public https:// URL of a receiver of yours"


class WebhookRules:
    """What is allowed beyond https:// and public addresses."""

    def __init__(self, *, networks: Sequence[Network] = (), allow_http: bool = False) -> None:
        self.networks = tuple(networks)
        self._schemes = ("https", "http") if allow_http else ("https",)

    def check(self, text: str) -> httpx.URL:
        """The URL, as it will be called. Raises InferenceError(INVALID_REQUEST) saying what is wrong with it.

        Messages do not quote the URL: it may hold a receiver's token.
        """
        import httpx  # here: a gateway without webhooks spares its memory

        if len(text) > _MAX_CHARS:
            raise _invalid(f"has {len(text)} characters, of at most {_MAX_CHARS}")
        if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
            raise _invalid("holds characters that a URL must have encoded")
        try:
            url = httpx.URL(text)
        except httpx.InvalidURL as cause:
            raise _invalid("is no URL") from cause
        if url.scheme not in self._schemes:
            raise _invalid(f"does not begin with {'://, '.join(self._schemes)}://")
        if url.userinfo:
            raise _invalid("holds a user name or password, which would be stored with the job")
        host = url.raw_host.decode("ascii").lower().removesuffix(".")
        if not _HOST.fullmatch(host) or url.port == 0 or (url.port or 443) > 65535:
            raise _invalid("names no host and port that could be called")
        if why := self._host_refusal(host):
            raise _invalid(f"leads to an address that is refused: {why}")
        return url

    def refusal(self, address: str) -> str:
        """Why an address that a name has resolved to is not called; "" when it may."""
        return refusal(address, self.networks)

    def _host_refusal(self, host: str) -> str:
        if host == "localhost" or host.endswith(".localhost"):
            return self.refusal("127.0.0.1")
        address = literal_address(host)
        return "" if address is None else self.refusal(address)


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, for logs and for telling endpoints apart; also of one that is none."""
    return "/".join(url.split("/", 3)[:3]).rpartition("@")[2].lower()[:300]


def _invalid(why: str) -> InferenceError:
    return invalid(f"the webhook's URL {why}", field=WEBHOOK_HEADER, remedy=_REMEDY)
