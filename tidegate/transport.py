"""Transport: what both clients share of httpx: how a call is sent, and what its answer or its failure is.

Knows no route. Does no I/O itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from tidegate.exchange import HttpCall, HttpReply

_CONNECT_TIMEOUT_S = 10.0
_WRITE_TIMEOUT_S = 60.0
# Failures before anything was sent; after any other the gateway may have got the call.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def base_url(url: str) -> str:
    """A gateway's url without a slash at its end. Raises ValueError."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address of a gateway: it begins with http:// or https://")
    return url.rstrip("/")


def headers_with(token: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers of every call."""
    return {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}


def target(url: str, headers: Mapping[str, str], call: HttpCall) -> tuple[str, dict[str, str]]:
    """(url, headers) of a call. The headers of every call, keys among them, are for the gateway at `url` alone."""
    if call.path.startswith("/"):
        return url + call.path, {**headers, **call.headers}
    return call.path, dict(call.headers)


def timeout_of(call: HttpCall) -> httpx.Timeout:
    """How long each part of a call may take."""
    return httpx.Timeout(
        connect=_CONNECT_TIMEOUT_S, read=call.read_timeout_s, write=_WRITE_TIMEOUT_S, pool=call.read_timeout_s
    )


def was_sent(error: httpx.HTTPError) -> bool:
    """Whether the gateway may have got the call that failed like this."""
    return not isinstance(error, _NOT_SENT)


def reply_of(response: httpx.Response) -> HttpReply:
    """An answer that has been read."""
    return HttpReply(
        response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content
    )
