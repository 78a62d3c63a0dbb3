"""How the tests of the gRPC side call it: the protocol's own client, and bare calls with bytes of one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as triton

from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import ROW

SERVICE = "/inference.GRPCInferenceService/"


def row_input(rows: int = 1) -> Any:
    """The tensor that an echo worker takes."""
    tensor = triton.InferInput("x", [rows, 4], "FP32")
    tensor.set_data_from_numpy(np.array([ROW] * rows, np.float32))
    return tensor


def row_request(model: str, **fields: Any) -> Any:
    """The client's own message of it."""
    message = triton.service_pb2.ModelInferRequest(model_name=model, **fields)
    message.inputs.append(row_input()._get_tensor())
    message.raw_input_contents.append(row_input()._get_content())
    return message


def bare(channel: Any, call: str) -> Any:
    """A call whose request and answer are bytes."""
    return channel.unary_unary(call if call.startswith("/") else SERVICE + call)


def streaming(channel: Any) -> Any:
    """The call ModelStreamInfer, of bytes."""
    return channel.stream_stream(f"{SERVICE}ModelStreamInfer")


async def infer(channel: Any, model: str, *, timeout: float | None = 20, **metadata: str) -> Any:
    """One ModelInfer of a row under way; `_` in names of metadata is `-`."""
    sent = [(name.replace("_", "-"), value) for name, value in metadata.items()]
    body = row_request(model, id="mine").SerializeToString()
    return bare(channel, "ModelInfer")(body, timeout=timeout, metadata=sent)


async def failed(call: Any) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Status, message and trailing metadata of a call that must fail."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", dict(error.trailing_metadata() or ())
    raise AssertionError("the call was answered")


async def replied(worker: EchoWorker, call: Any) -> Any:
    """Let the worker answer the one request that this call of the protocol's client makes."""
    answer = asyncio.ensure_future(call)
    await worker.reply(await worker.take())
    return await answer


def rows_of(result: Any) -> Sequence[Any]:
    """What a result of the client has come back with."""
    values: Sequence[Any] = result.as_numpy("x").tolist()
    return values
