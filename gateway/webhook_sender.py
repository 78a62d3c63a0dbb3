"""WebhookSender: one attempt, an HTTP request to an address that was checked.

The name is resolved once, every address it has is judged, and the connection goes to one of those: a name that answers
differently a moment later gains nothing. Host header, SNI and certificate are the name's all the same. Redirects are
not followed and proxies of the environment not used: both would go where nobody has looked. Each attempt has a
connection of its own, since one that is kept would be found by its address, whatever name it was made for.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec

from gateway.webhook_schedule import retry_after_s
from gateway.webhook_url import WebhookRules
from schemas.errors import ErrorCode, InferenceError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_MAX_ADDRESSES = 3  # tried in turn when nothing listens
_MAX_ANSWER_BYTES = 4096  # read so that the receiver's write ends well; nobody looks at them
_LOOK_UP_THREADS = 32
_GONE = 410


class Attempt(msgspec.Struct, frozen=True):
    """How an attempt ended. `status` is 0 when no answer came, `error` is empty when the receiver took the webhook.

    `final`: another attempt would be wrong (410, an address that is refused). `alive`: the endpoint as such works.
    `kind` is for metrics: 2xx, 3xx, 4xx, 5xx, timeout, connection or refused.
    """

    kind: str
    status: int = 0
    error: str = ""
    final: bool = False
    alive: bool = False
    retry_after_s: float | None = None

    @property
    def taken(self) -> bool:
        """The receiver has it."""
        return not self.error


class Resolver:
    """Looks names up in threads of its own: the event loop's are few, and a dead name server holds each for long."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOK_UP_THREADS, thread_name_prefix="look up")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """All addresses of a name. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def close(self) -> None:
        """Wait for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class WebhookSender:
    """Sends. `rules` say what may be called, `resolve` gives the addresses of a name."""

    def __init__(self, *, rules: WebhookRules, resolve: Resolve, timeout_s: float) -> None:
        self._rules = rules
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._tls = httpx.create_ssl_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """Make one attempt; it takes no longer than the timeout and raises nothing but cancellation."""
        try:
            checked = self._rules.check(url)
            async with asyncio.timeout(self._timeout_s):
                addresses = await self._addresses(checked)
                return _judged(await self._post(checked, addresses, headers, body))
        except InferenceError as error:
            return Attempt("refused", error=error.message, final=True, alive=True)
        except (TimeoutError, httpx.TimeoutException):
            return Attempt("timeout", error=f"no answer within {self._timeout_s:g} s")
        except (OSError, httpx.TransportError) as error:
            return Attempt("connection", error=f"{type(error).__name__}: {error}"[:200])

    async def _addresses(self, url: httpx.URL) -> Sequence[str]:
        host = url.raw_host.decode("ascii")
        addresses = await self._resolve(host, _port(url))
        for address in addresses:
            if why := self._rules.refusal(address):
                raise InferenceError(
                    ErrorCode.INVALID_REQUEST, f"the webhook's host leads to an address that is refused: {why}"
                )
        if not addresses:
            raise OSError(f"{host} has no address")
        return addresses[:_MAX_ADDRESSES]

    async def _post(
        self, url: httpx.URL, addresses: Sequence[str], headers: Mapping[str, str], body: bytes
    ) -> httpx.Response:
        last = len(addresses) - 1
        for number, address in enumerate(addresses):
            try:
                return await self._post_to(address, url, headers, body)
            except httpx.ConnectError:  # nothing was sent, so the next address may be asked
                if number == last:
                    raise
        raise AssertionError("this is a bug: there is no address")

    async def _post_to(self, address: str, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> httpx.Response:
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), self._timeout_s)
        request = httpx.Request(
            "POST",
            url.copy_with(host=address, fragment=None),
            headers={"host": url.netloc.decode("ascii"), "connection": "close", **headers},
            content=body,
            extensions={"sni_hostname": url.raw_host.decode("ascii"), "timeout": timeout},
        )
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                await _read_a_little(response)
            finally:
                await response.aclose()
            return response


def _look_up(host: str, port: int) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]  # int enums


async def _read_a_little(response: httpx.Response) -> None:
    read_bytes = 0
    try:
        async for part in response.aiter_raw():
            read_bytes += len(part)
            if read_bytes >= _MAX_ANSWER_BYTES:
                return
    except httpx.TransportError:
        return  # the head said all that counts


def _judged(response: httpx.Response) -> Attempt:
    """What an answer means, as Standard Webhooks has it: 2xx is taken, 410 is the end, all else is tried again."""
    status = response.status_code
    kind = f"{status // 100}xx"
    if 200 <= status < 300:
        return Attempt(kind, status, alive=True)
    wait_s = retry_after_s(response.headers.get("retry-after"), now_s=time.time())
    error = f"answered {status}"
    if 300 <= status < 400:
        error += "; redirects are not followed"
    # 4xx tells of this webhook, 429 and 5xx of the endpoint.
    alive = 300 <= status < 500 and status != 429
    return Attempt(kind, status, error, status == _GONE, alive, wait_s)


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
