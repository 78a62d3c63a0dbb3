"""GrpcStream: many requests over one call, answered in the order in which they came.

Clients of the protocol pair answers with requests by their order, unless they give ids of their own. All requests of a
stream run at the same time, as many as it may have; the next one is read when one of them has been answered. Knows no
Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc

from gateway.grpc_edge import Context, Visit, error_of
from gateway.grpc_infer import GrpcInfer
from gateway.grpc_messages.inference_pb2 import ModelInferRequest
from gateway.grpc_status import message_of as text_of
from gateway.grpc_status import metadata_of
from gateway.grpc_tensors import encode_answer, encode_stream_answer, encode_stream_error
from schemas.errors import ErrorCode, InferenceError
from schemas.response import InferenceResponse

_FINAL = "triton_final_response"  # every request has one answer, so each is the final one


class GrpcStream:
    """The call ModelStreamInfer."""

    def __init__(
        self,
        *,
        infer: GrpcInfer,
        next_id: Callable[[], str],
        in_flight: int,
        count: Callable[[int, float], None],
    ) -> None:
        """`in_flight`: requests of one stream that run at a time. `count` is told of each answer, as `Edge`'s is."""
        self._infer = infer
        self._next_id = next_id
        self._in_flight = in_flight
        self._count = count
        self._closing = asyncio.Event()
        self._readers: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Have all streams answer what they have read, and end."""
        self._closing.set()

    async def serve(self, context: Context, visit: Visit) -> None:
        """One stream, to its end. Raises InferenceError(UNAVAILABLE) when `close` ended it."""
        permits = asyncio.Semaphore(self._in_flight)
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()  # as many as there are permits
        running: set[asyncio.Task[bytes]] = set()
        ended = asyncio.Event()

        async def read() -> None:
            while await permits.acquire() and not ended.is_set():
                try:
                    body = await context.read()
                except grpc.aio.BaseError:
                    if ended.is_set():  # so has the call
                        return
                    raise
                if body is grpc.aio.EOF or ended.is_set():
                    return
                task = asyncio.get_running_loop().create_task(self._answer(body, visit))
                running.add(task)
                answers.put_nowait(task)

        # Never cancelled: gRPC would write what it reads into memory that is gone. Its read ends with the call.
        reader = asyncio.get_running_loop().create_task(read(), name="gRPC stream reader")
        self._readers.add(reader)
        reader.add_done_callback(lambda _: answers.put_nowait(None))
        reader.add_done_callback(self._readers.discard)
        closing = asyncio.ensure_future(self._closing.wait())
        closing.add_done_callback(lambda _: answers.put_nowait(None))
        try:
            while (task := await answers.get()) is not None:
                await context.write(await task)
                running.discard(task)
                permits.release()
        finally:
            ended.set()
            permits.release()
            closing.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if not reader.done():
            raise InferenceError(ErrorCode.UNAVAILABLE, "this gateway stops", remedy="open a new stream")
        reader.result()

    async def _answer(self, body: bytes, visit: Visit) -> bytes:
        """One request's answer on the wire, whatever becomes of it."""
        begun_s, id_, told = time.perf_counter(), self._next_id(), ""
        try:
            message = ModelInferRequest.FromString(body)
            told = message.id
            response = await self._infer.run(message, visit, id_)
            response.parameters[_FINAL] = True
            answer = encode_stream_answer(encode_answer(response))
            self._count(200, time.perf_counter() - begun_s)
            return answer
        except Exception as caught:
            error = error_of(caught, id_)
            self._count(error.code.http_status, time.perf_counter() - begun_s)
            parameters = {name.replace("-", "_"): value for name, value in metadata_of(error)}
            whose = InferenceResponse("", "", (), told, {**parameters, _FINAL: True})
            return encode_stream_error(text_of(error), encode_answer(whose))
