"""TcpGate: a port of this machine that leads to another one, or, while it is closed, refuses.

For servers that must go away and come back with all that they hold. It must not know what passes.
"""

from __future__ import annotations

import asyncio
from typing import Self
from urllib.parse import urlsplit


class TcpGate:
    """Enter it to open it. `url` leads through it, and stays the same."""

    def __init__(self, target_url: str) -> None:
        self._target = urlsplit(target_url)
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """The address of the gate."""
        return f"http://127.0.0.1:{self._port}"

    async def open(self) -> None:
        """Let connections through; the first time on a free port, later on the same."""
        if self._server is None:
            self._server = await asyncio.start_server(self._pass, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse connections, and end those there are. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        try:
            there, onwards = await asyncio.open_connection(self._target.hostname, self._target.port)
            try:
                await asyncio.gather(_pump(reader, onwards), _pump(there, writer))
            finally:
                onwards.close()
        except (OSError, asyncio.CancelledError):
            pass  # one of the two sides has gone, or the gate is closing: so does the connection
        finally:
            self._passing.discard(task)
            writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
