"""Connections: what a client may take of time and memory, over real sockets, on the gateway's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Self

import pytest
import pytest_asyncio
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.byte_budget import ByteBudget
from gateway.connection import Connection, ConnectionConfig, ConnectionLimits
from gateway.server import Listener, Server

LIMITS = ConnectionLimits(
    max_connections=4,
    max_header_bytes=4096,
    max_headers=20,
    header_timeout_s=0.3,
    body_timeout_s=0.3,
    write_timeout_s=0.3,
    keep_alive_s=0.4,
)
LARGE = 32 * 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\n"


class Service:
    """A server whose application reads the body and answers its size; `heard` tells how requests ended."""

    def __init__(self) -> None:
        self.budget = ByteBudget(1 << 40)
        self.heard: queue.Queue[str] = queue.Queue()
        self.port = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self._server: Server

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()

    async def _serve(self) -> None:
        self._server = Server.of(self.app, Listener("127.0.0.1", 0), limits=LIMITS, budget=self.budget)
        serving = asyncio.create_task(self._server.serve())
        while not self._server.started:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self._started.set()
        await serving

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0
        while scope["path"] != "/early":
            message = await receive()
            if message["type"] == "http.disconnect":
                self.heard.put_nowait("disconnect")
                return
            size += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        body = b"x" * LARGE if scope["path"] == "/large" else str(size).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.heard.put_nowait(scope["path"])


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    with service:
        yield service


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def problem(self) -> tuple[int, dict[str, Any]]:
        """The status and document of an answer that ends the connection."""
        async with asyncio.timeout(5):
            head, _, body = (await self.reader.read()).partition(b"\r\n\r\n")
        assert b"connection: close" in head
        assert b"application/problem+json" in head
        document: dict[str, Any] = json.loads(body)
        assert document["remedy"]
        return int(head.split()[1]), document

    async def ended(self) -> bytes:
        """What still comes until the server has closed."""
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read()
            return b""


@pytest_asyncio.fixture
async def clients(service: Service) -> AsyncIterator[Any]:
    opened: list[Client] = []

    async def open_client() -> Client:
        opened.append(Client(*await asyncio.open_connection("127.0.0.1", service.port)))
        return opened[-1]

    yield open_client
    for client in opened:
        client.writer.close()


async def test_requests_are_served_and_a_connection_is_used_again(service: Service, clients: Any) -> None:
    client = await clients()
    for _ in range(2):
        client.send(b"POST /a HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello")
        assert (await client.head()).startswith(OK)
        assert await client.reader.readexactly(1) == b"5"
    client.send(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n")  # both at once
    for _ in range(2):
        assert (await client.head()).startswith(OK)
        await client.reader.readexactly(1)
    assert await client.ended() == b""  # idle for too long


async def test_a_slow_head_is_408(clients: Any) -> None:
    client = await clients()
    client.send(b"GET / HT")
    assert (await client.problem())[0] == 408


async def test_a_slow_head_on_a_used_connection_is_408(clients: Any) -> None:
    client = await clients()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    await client.head()
    await client.reader.readexactly(1)
    client.send(b"GET / HTTP/1.1\r\nx: ")
    assert (await client.problem())[0] == 408


async def test_a_connection_that_says_nothing_is_closed(clients: Any) -> None:
    assert await (await clients()).ended() == b""


async def test_a_slow_body_is_408_and_the_application_hears_that_the_client_has_gone(
    service: Service, clients: Any
) -> None:
    client = await clients()
    client.send(b"POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\nhel")
    status, document = await client.problem()
    assert (status, document["code"]) == (408, "request_timeout")
    assert await asyncio.to_thread(service.heard.get, timeout=5) == "disconnect"


async def test_bytes_buy_time_for_a_body(service: Service, clients: Any) -> None:
    client = await clients()
    client.send(b"POST / HTTP/1.1\r\ncontent-length: 2048\r\n\r\n" + b"x" * 1024)  # worth a second
    await asyncio.sleep(0.5)  # longer than the timeout: that it is still served is the point
    client.send(b"x" * 1024)
    assert (await client.head()).startswith(OK)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % number for number in range(21)) + b"\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n",
        b"GET /" + b"y" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 5000,  # and never an end
        b"GET /" + b"y" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000,
    ],
)
async def test_a_large_head_is_431(head: bytes, service: Service, clients: Any) -> None:
    client = await clients()
    client.send(head)
    status, document = await client.problem()
    assert (status, document["code"]) == (431, "headers_too_large")
    assert service.heard.empty()


async def test_a_head_of_just_the_limit_is_served_in_pieces_too(clients: Any) -> None:
    for pieces in (1, 3):
        client = await clients()
        head = b"GET / HTTP/1.1\r\nx: " + b"y" * 4000 + b"\r\n\r\n"
        step = -(-len(head) // pieces)
        for first in range(0, len(head), step):
            client.send(head[first : first + step])
            await client.writer.drain()
            await asyncio.sleep(0.02)  # so that they arrive apart
        assert (await client.head()).startswith(OK)


async def test_a_large_body_is_no_large_head(clients: Any) -> None:
    client = await clients()
    client.send(b"POST / HTTP/1.1\r\ncontent-length: 60000\r\n\r\n" + b"x" * 60_000)
    assert (await client.head()).startswith(OK)
    assert await client.reader.readexactly(5) == b"60000"


@pytest.mark.parametrize("data", [b"NONSENSE\r\n\r\n", b"\x16\x03\x01\x00", b"GET / HTTP/9.9\r\n\r\n"])
async def test_nonsense_is_400(data: bytes, clients: Any) -> None:
    client = await clients()
    client.send(data)
    assert (await client.problem())[0] == 400


async def test_one_connection_too_many_is_told_to_come_again_and_a_place_is_free_after_one_leaves(
    clients: Any,
) -> None:
    held = [await clients() for _ in range(4)]
    for client in held:
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        await client.head()
        await client.reader.readexactly(1)
    extra = await clients()
    extra.send(b"GET / HTTP/1.1\r\n\r\n")
    head = await extra.head()
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in head
    held[0].writer.close()
    await held[0].writer.wait_closed()
    await extra.ended()
    again = await clients()
    again.send(b"GET / HTTP/1.1\r\n\r\n")
    assert (await again.head()).startswith(OK)


async def test_far_too_many_connections_are_cut_off(service: Service, clients: Any) -> None:
    ends = [asyncio.create_task((await clients()).ended()) for _ in range(30)]
    assert set(await asyncio.gather(*ends)) == {b""}
    client = await clients()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    assert (await client.head()).startswith(OK)


@pytest.mark.parametrize("ending", [b"", b"connection: close\r\n"])
async def test_who_does_not_read_is_cut_off_and_counts_until_then(
    ending: bytes, service: Service, clients: Any
) -> None:
    client = await clients()
    client.reader._transport.pause_reading()
    client.send(b"GET /large HTTP/1.1\r\n" + ending + b"\r\n")
    assert await asyncio.to_thread(service.heard.get, timeout=5) == "/large"
    assert service.budget.used_bytes > LARGE / 2
    async with asyncio.timeout(5):
        while service.budget.used_bytes:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.02)
    client.reader._transport.resume_reading()
    assert len(await client.ended()) < LARGE


async def test_who_reads_steadily_gets_all_of_it(service: Service, clients: Any) -> None:
    client = await clients()
    client.send(b"GET /large HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert (await client.head()).startswith(OK)
    size = 0
    async with asyncio.timeout(20):
        while part := await client.reader.read(1 << 20):
            size += len(part)
            await asyncio.sleep(0.02)  # slower than it is written
    assert size == LARGE
    assert service.budget.used_bytes == 0


async def test_a_refused_body_that_goes_on_and_on_ends(clients: Any) -> None:
    """The application answers before the body is there; who sends on for ever is cut off."""
    client = await clients()
    client.send(b"POST /early HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    assert (await client.head()).startswith(OK)
    await client.reader.readexactly(1)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            while not client.reader.at_eof():
                client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")  # fast enough for a body
                await client.writer.drain()
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "beside", [b"0\r\n" + b"x: y\r\n" * 100_000, b"0\r\nx: " + b"y" * 500_000, b"5;" + b"y" * 500_000]
)
async def test_what_comes_beside_a_body_is_bounded_as_heads_are(beside: bytes, clients: Any) -> None:
    client = await clients()
    client.send(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    client.send(beside)
    assert (await client.problem())[0] in (400, 431)


class Unread:
    """A transport whose client takes nothing: a little is left, less than what makes it say so."""

    def __init__(self) -> None:
        self.aborted = asyncio.Event()

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0 if self.aborted.is_set() else 1000

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted.set()


async def test_a_connection_that_is_closed_does_not_wait_for_ever_for_a_client_to_read() -> None:
    config = ConnectionConfig(Service().app, interface="asgi3", log_config=None, lifespan="off")
    config.limits, config.budget = LIMITS, ByteBudget(1 << 40)
    config.load()
    connection, transport = Connection(config, ServerState(), {}), Unread()
    connection.connection_made(transport)  # type: ignore[arg-type]  # a transport in all that is used
    connection.timeout_keep_alive_handler()
    assert config.budget.used_bytes == 1000
    async with asyncio.timeout(5):
        await transport.aborted.wait()
    connection.connection_lost(None)
    assert config.budget.used_bytes == 0
