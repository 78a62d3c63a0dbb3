"""GrpcInfer: from a ModelInferRequest to its answer, alone or on a stream. Knows no server and no Kafka."""

from __future__ import annotations

import time

from gateway.call import Call, clocks_of, priority_of
from gateway.call_headers import has_call_headers, with_headers
from gateway.caller import ANYONE
from gateway.catalogue import Catalogue
from gateway.dispatcher import Accepted, Dispatcher
from gateway.grpc_messages.inference_pb2 import ModelInferRequest
from gateway.grpc_status import StillRunsError
from gateway.grpc_tensors import encode_answer, request_of
from gateway.grpc_visit import Visit
from gateway.preferences import parse_preferences
from schemas.deadline import Deadline
from schemas.request import InferenceRequest
from schemas.response import InferenceResponse
from schemas.v2 import decode_response

JOB_ID = "tidegate_job_id"
_EXPIRED_ANSWER_GRACE_MS = 5_000  # after a deadline, for the worker to say that it has passed
_NEVER_S = 1e9  # some clients say "no deadline" with one that is a lifetime away


class GrpcInfer:
    """Runs requests. Callers' own deadlines are the requests' total deadlines."""

    def __init__(self, *, catalogue: Catalogue, dispatcher: Dispatcher, wait_s: float) -> None:
        self._catalogue = catalogue
        self._dispatcher = dispatcher
        self._wait_ms = int(wait_s * 1000)

    async def infer(self, body: bytes, visit: Visit) -> bytes:
        """The call ModelInfer. Raises InferenceError, and DecodeError for what is no message."""
        return encode_answer(await self.run(ModelInferRequest.FromString(body), visit))

    async def run(self, message: ModelInferRequest, visit: Visit) -> InferenceResponse:
        """Run one request under the visit's id.

        A caller that prefers respond-async gets an answer without outputs whose parameter `tidegate_job_id` names the
        job. Raises InferenceError: StillRunsError when the wait has run out, else whatever checking and running raise.
        When cancelled, the request is taken out of its queue.
        """
        name, version = message.model_name, message.model_version
        visit.model = name
        if visit.caller is not ANYONE:
            visit.caller.require("infer", name)
        model = self._catalogue.model(name)
        model.metadata.resolve(version)
        request = request_of(message)
        model.metadata.check(request)
        call = self._call(request, visit, version)
        answer = await self._dispatcher.infer(model, request, call)
        if isinstance(answer, Accepted):
            if call.detached:
                return InferenceResponse(name, version, (), request.id, {JOB_ID: answer.job_id})
            raise StillRunsError(answer.job_id)
        if error := answer.error():
            raise error
        return decode_response(answer.value, answer.header_length)

    def _call(self, request: InferenceRequest, visit: Visit, version: str) -> Call:
        parameters, sent, left_s = request.parameters, visit.sent, visit.left_s
        wait_ms, detached = self._wait_ms, False
        if b"prefer" in sent:
            preferences = parse_preferences((sent[b"prefer"],))
            detached = preferences.respond_async and preferences.wait_s is None
            if preferences.wait_s is not None:
                wait_ms = min(wait_ms, preferences.wait_s * 1000)
        if has_call_headers(sent):
            parameters = with_headers(parameters, sent)
        clocks, now_ms = clocks_of(parameters), time.time_ns() // 1_000_000
        deadline = clocks.deadline(now_ms)
        if left_s is not None and left_s < _NEVER_S and not detached:  # of a job, the deadline is the submission's
            theirs = Deadline(now_ms + int(left_s * 1000))
            deadline = theirs if deadline is None else min(deadline, theirs)
        for budget_ms in (clocks.deadline_ms, clocks.start_ms):
            if budget_ms:
                wait_ms = min(wait_ms, budget_ms + _EXPIRED_ANSWER_GRACE_MS)
        return Call(
            visit.id,
            wait_ms,
            detached,
            deadline,
            visit.traceparent,
            version,
            clocks.start_by(now_ms),
            clocks.execution_ms,
            priority_of(parameters),
            caller=visit.caller,
            ends_with_caller=not detached,
        )
