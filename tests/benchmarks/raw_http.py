"""RawHttp: HTTP/1.1 requests with any header and body, as quick as they go, over one connection after the other.

Sends what a library would refuse to. Knows nothing of who answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

_PATIENCE_S = 60.0


class NoAnswer(Exception):  # noqa: N818  # what is told of is not an error of ours
    """The connection ended without a whole answer, or none came in a minute."""


class RawHttp:
    """One caller. Enter it; a connection is opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def send(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises NoAnswer."""
        lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        head = "\r\n".join(lines).encode("utf-8", "surrogateescape")
        try:
            async with asyncio.timeout(_PATIENCE_S):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(head + b"\r\n\r\n" + body)
                return await self._read(reader)
        except (OSError, asyncio.IncompleteReadError, ValueError, TimeoutError) as cause:
            self._close()
            raise NoAnswer(repr(cause)) from cause

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status_line, *lines = head.split("\r\n")
        headers = dict(line.partition(": ")[::2] for line in lines if line)
        status = int(status_line.split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self._close()
        return status, body

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
