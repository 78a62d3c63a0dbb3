"""The bare server: the gateway's HTTP server and codec answering an identity request inline. No Kafka, no worker.

Run as a script it is that server. It is what the gateway could do at most: same event loop, same server settings, the
v2 JSON decoded and encoded by the same codec; nothing is routed, looked up or checked against a model.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog
import uvloop
from starlette.types import Receive, Scope, Send

from gateway.byte_budget import ByteBudget
from gateway.connection import ConnectionLimits
from gateway.server import Listener, Server
from schemas.response import InferenceResponse
from schemas.tensor import Tensor
from schemas.v2 import decode_request, encode_response, wants_binary
from tests.benchmarks.stack import Program, program


@contextlib.contextmanager
def bare_server(*, log: Path) -> Iterator[Program]:
    """The server's process, listening."""
    with program("bare server", ["-m", "tests.benchmarks.bare_asgi"], log=log, environment={}) as running:
        running.port = running.read("port")
        yield running


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    parts = [message["body"]]
    while message["more_body"]:
        message = await receive()
        parts.append(message["body"])
    request = decode_request(b"".join(parts))
    outputs = tuple(Tensor("OUTPUT0", tensor.datatype, tensor.shape, tensor.data) for tensor in request.inputs)
    response = InferenceResponse("identity", "1", outputs, request.id)
    body, _ = encode_response(response, binary=wants_binary(request))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _serve() -> None:
    server = Server.of(_answer, Listener("127.0.0.1", 0), limits=ConnectionLimits(), budget=ByteBudget(1 << 40))
    gc.collect()
    gc.freeze()  # as the gateway does
    await server.serve()


def main() -> None:
    """Serve until terminated."""
    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
