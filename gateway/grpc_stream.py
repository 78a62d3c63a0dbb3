"""GrpcStream: many requests over one call, answered in the order in which they came.

Clients of the protocol pair answers with requests by their order, unless they give ids of their own. All requests of a
stream run at the same time, as many as it may have; the next one is read when one of them has been answered. Knows no
Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from gateway.grpc_edge import error_of
from gateway.grpc_infer import GrpcInfer
from gateway.grpc_messages.inference_pb2 import ModelInferRequest
from gateway.grpc_status import message_of as text_of
from gateway.grpc_status import metadata_of
from gateway.grpc_tensors import encode_answer, encode_stream_answer, encode_stream_error
from gateway.grpc_trail import GrpcTrail
from gateway.grpc_visit import Context, Visit
from schemas.errors import ErrorCode, InferenceError
from schemas.response import InferenceResponse

SERVICE = "inference.GRPCInferenceService"
_FINAL = "triton_final_response"  # every request has one answer, so each is the final one


class GrpcStream:
    """The call ModelStreamInfer."""

    path = f"/{SERVICE}/ModelStreamInfer"

    def __init__(
        self,
        *,
        infer: GrpcInfer,
        next_id: Callable[[], str],
        in_flight: int,
        trail: GrpcTrail,
    ) -> None:
        """`in_flight`: requests of one stream that run at a time. Each of them leaves a trail, as calls do."""
        self._infer = infer
        self._next_id = next_id
        self._in_flight = in_flight
        self._trail = trail
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

    async def _answer(self, body: bytes, stream: Visit) -> bytes:
        """One request's answer on the wire, whatever becomes of it."""
        visit, told = stream.request(self._next_id()), ""
        span = self._trail.begin(self.path, visit)
        code, answer = None, b""
        try:
            message = ModelInferRequest.FromString(body)
            told = message.id
            response = await self._infer.run(message, visit)
            response.parameters[_FINAL] = True
            answer = encode_stream_answer(encode_answer(response))
        except asyncio.CancelledError:
            code = ErrorCode.CANCELLED
            raise
        except Exception as caught:
            error = error_of(caught, visit.id)
            code = error.code
            parameters = {name.replace("-", "_"): value for name, value in metadata_of(error)}
            whose = InferenceResponse("", "", (), told, {**parameters, _FINAL: True})
            answer = encode_stream_error(text_of(error), encode_answer(whose))
        finally:
            sizes = {"bytes_in": len(body), "bytes_out": len(answer)}
            self._trail.end(self.path, visit, span, code, is_inference=True, **sizes)
        return answer
