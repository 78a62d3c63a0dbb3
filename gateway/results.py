"""Results: what jobs gave, in the form that the caller likes best, large ones by a URL of the object store.

Knows no Kafka client, and not how a job's standing is found.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.accept import best_of
from gateway.caller import caller_in
from gateway.job_answer import JSON, json_response, with_tag
from gateway.job_watch import JobWatch
from gateway.outcomes import Outcomes
from gateway.standing import document_of
from gateway.standings import Standings
from gateway.waits import wait_of
from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.outcome import Outcome
from schemas.response import InferenceResponse
from schemas.tensor import Buffer, Tensor, iter_bytes_elements
from schemas.v2 import HEADER_LENGTH, decode_response, encode_response

OCTETS = "application/octet-stream"
_FORMS = (JSON, OCTETS)
_INLINE_BYTES = 256 * 1024  # a few milliseconds; what is larger is encoded in a thread


class Results:
    """The routes below /v1/jobs/{id}/result."""

    def __init__(
        self,
        *,
        standings: Standings,
        watch: JobWatch,
        outcomes: Outcomes,
        max_wait_s: float,
        link_above_bytes: int,
        link_for_s: int,
    ) -> None:
        """Results above `link_above_bytes` are answered by a URL, good for `link_for_s`; 0: never."""
        self._standings = standings
        self._watch = watch
        self._outcomes = outcomes
        self._max_wait_s = max_wait_s
        self._link_above_bytes = link_above_bytes
        self._link_for_s = link_for_s

    def routes(self) -> list[Route]:
        """What to mount; GET is HEAD, too."""
        return [
            Route("/v1/jobs/{id}/result", self._get, methods=["GET"]),
            Route("/v1/jobs/{id}/result/outputs/{name}", self._get_output, methods=["GET"]),
        ]

    async def _get(self, request: Request) -> Response:
        found = await self._succeeded(request)
        if isinstance(found, Response):
            return found
        accept = request.headers.get("accept", "")
        form = best_of(_FORMS, accept)
        if form is None:
            raise _not_acceptable(accept, f"accept {JSON} or {OCTETS}")
        tag = _tag(found, form)
        if (known := with_tag(request, tag)) is not None:
            return known
        if self._link_above_bytes and form == _form_as_stored(found) and (link := await self._link(found, form)):
            headers = {"location": link, "cache-control": "no-store", **_length_header(found.header_length)}
            return Response(None, 303, headers)
        outcome = await self._outcomes.with_value(found)
        encode = partial(_encoded, outcome, form, accept)
        large = len(outcome.value) > _INLINE_BYTES
        form, body, header_length = await asyncio.to_thread(encode) if large else encode()
        headers = {"etag": tag, "vary": "accept", **_length_header(header_length)}
        return Response(bytes(body), 200, headers, form)

    async def _get_output(self, request: Request) -> Response:
        found = await self._succeeded(request)
        if isinstance(found, Response):
            return found
        name, accept = request.path_params["name"], request.headers.get("accept", "")
        if best_of((OCTETS,), accept) is None:
            raise _not_acceptable(accept, f"accept {OCTETS}: a single output is told as its bytes")
        tag = _tag(found, f"output {name}")
        if (known := with_tag(request, tag)) is not None:
            return known
        outcome = await self._outcomes.with_value(found)
        tensor = _output(decode_response(outcome.value, outcome.header_length), name)
        shape = msgspec.json.encode(tensor.shape).decode()
        headers = {"tidegate-datatype": tensor.datatype, "tidegate-shape": shape, "etag": tag}
        return Response(_raw(tensor), 200, headers, OCTETS)

    async def _succeeded(self, request: Request) -> Outcome | Response:
        """The outcome of a job that has succeeded, or 202 with the document of one that has not ended.

        Raises the job's error, and InferenceError as `JobWatch.wait`.
        """
        id_ = request.path_params["id"]
        job = self._standings.job(id_, caller_in(request.scope))
        timeout_s = wait_of(request.query_params, self._max_wait_s)
        standing = await self._watch.wait(job, timeout_s=timeout_s)
        if standing.outcome is None:
            return json_response(document_of(id_, standing), status=202, headers={"retry-after": "1"})
        if error := standing.outcome.error():
            raise error
        return standing.outcome

    async def _link(self, outcome: Outcome, form: str) -> str | None:
        # A store tells no headers of ours; so the length goes along in what it does tell.
        length = outcome.header_length
        content_type = form if length is None else f"{form}; {HEADER_LENGTH}={length}"
        return await self._outcomes.link(
            outcome, above_bytes=self._link_above_bytes, expires_s=self._link_for_s, content_type=content_type
        )


def _form_as_stored(outcome: Outcome) -> str:
    return JSON if outcome.header_length is None else OCTETS


def _encoded(outcome: Outcome, form: str, accept: str) -> tuple[str, Buffer, int | None]:
    """(media type, body, length of its JSON part) of a result; raw tensors where JSON cannot hold it."""
    value, length = outcome.value, outcome.header_length
    if form == OCTETS and length is not None:
        return form, value, length
    response = decode_response(value, length)
    if form == JSON:
        try:
            return form, encode_response(response, binary=lambda name: False)[0], None
        except InferenceError as cause:
            if best_of((OCTETS,), accept) is None:
                raise _not_acceptable(accept, f"accept {OCTETS}: {cause.message}") from cause
    body, length = encode_response(response)
    return (JSON if length is None else OCTETS), body, length


def _output(response: InferenceResponse, name: str) -> Tensor:
    for tensor in response.outputs:
        if tensor.name == name:
            return tensor
    names = ", ".join(tensor.name for tensor in response.outputs)
    raise invalid(f"the result has no output {name!r}", field="name", value=name, remedy=f"use one of {names}")


def _raw(tensor: Tensor) -> bytes:
    """A tensor's bytes; of BYTES with a single element that element's, without its length before it."""
    if tensor.datatype == "BYTES" and tensor.element_count == 1:
        return bytes(next(iter_bytes_elements(tensor.name, tensor.data)))
    return bytes(tensor.data)


def _length_header(header_length: int | None) -> dict[str, str]:
    return {} if header_length is None else {HEADER_LENGTH: str(header_length)}


def _tag(outcome: Outcome, form: str) -> str:
    """An outcome never changes: its place and its time are its name, and the form that of the representation."""
    named = f"{outcome.origin} {outcome.created_ms} {outcome.finished_ms} {form}"
    return f'"{hashlib.blake2b(named.encode(), digest_size=12).hexdigest()}"'


def _not_acceptable(accept: str, remedy: str) -> InferenceError:
    return InferenceError(
        ErrorCode.NOT_ACCEPTABLE, "the result has no form that is accepted", field="accept", value=accept, remedy=remedy
    )
