"""Operations: everything that a client does at a gateway, each as a generator without I/O (tidegate/exchange.py), so
that the synchronous and the asynchronous client are the same but for who waits.

Knows no HTTP library and no event loop.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.encoding import (
    HEADER_LENGTH,
    JSON,
    OCTETS,
    decode_document,
    decode_result,
    encode_binary,
    encode_json,
    request_document,
)
from tidegate.errors import ConflictError, TidegateError, UnreadableAnswerError, WaitTimeoutError, error_of_problem
from tidegate.exchange import Clock, HttpCall, HttpReply, Operation, Pause, Retries, exchange
from tidegate.inputs import Inputs, needed_datatypes, tensors_of
from tidegate.options import (
    RequestOptions,
    SubmitOptions,
    headers_of,
    infer_path,
    job_path,
    jobs_path,
    model_path,
    parameters_of,
)
from tidegate.result import Result
from tidegate.status import JobStatus, ModelStatus, job_status, model_statuses

_LONGEST_WAIT_S = 55  # proxies in between close what is silent for a minute
_LONG_POLL_S = 30
_ANSWER_GRACE_S = 15.0  # for the gateway to answer after the wait that it was asked for
_FIRST_PACE_S = 0.05
_LAST_PACE_S = 1.0
_MAX_MODELS = 1000
_NO_SUCH_ROUTE = (404, 405, 501)
_ELSEWHERE = (302, 303, 307)


class Operations:
    """One client's. Holds nothing but what models take, so threads may share it."""

    def __init__(self, *, retries: Retries, binary: bool, clock: Clock) -> None:
        """`binary`: tensors travel raw; else as JSON."""
        self._retries = retries
        self._binary = binary
        self._clock = clock
        self._datatypes: dict[tuple[str, str], dict[str, str]] = {}

    def infer(self, model: str, inputs: Inputs, timeout_s: float | None, options: RequestOptions) -> Operation[Result]:
        """Run a request; when the gateway hands it over as a job, wait for that within the same time."""
        until_s = self.until_s(timeout_s)
        wait_s = _LONGEST_WAIT_S if timeout_s is None else max(1, min(_LONGEST_WAIT_S, math.floor(timeout_s)))
        prefer, read_timeout_s = {"prefer": f"wait={wait_s}"}, wait_s + _ANSWER_GRACE_S
        call = yield from self._request(model, inputs, options, prefer, read_timeout_s, repeatable=False)
        reply = yield from self._exchange(call, until_s)
        if reply.status != 202:
            return decode_result(reply.headers, reply.body)
        status = job_status(decode_document(reply.body))
        return (yield from self._result(status.id, until_s, timeout_s or 0.0))

    def submit(self, model: str, inputs: Inputs, options: SubmitOptions) -> Operation[JobStatus]:
        """Submit a job."""
        extra = {"prefer": "respond-async", "idempotency-key": options.get("idempotency_key") or uuid.uuid4().hex}
        call = yield from self._request(model, inputs, options, extra, _ANSWER_GRACE_S * 2, repeatable=True)
        reply = yield from self._exchange(call)
        if reply.status != 202:
            raise UnreadableAnswerError("unreadable_answer", f"a job was submitted and answered {reply.status}")
        return job_status(decode_document(reply.body))

    def submit_many(
        self, model: str, many: Sequence[Inputs], options: SubmitOptions
    ) -> Operation[list[JobStatus | TidegateError]]:
        """Submit independent jobs in one call, in their order; where that cannot be, one by one."""
        try:
            documents = yield from self._documents(model, many, options)
        except ValueError:  # JSON cannot hold them
            return (yield from self._submit_each(model, many, options))
        key = options.get("idempotency_key") or uuid.uuid4().hex
        headers = {**headers_of(options), "content-type": JSON, "idempotency-key": key, "prefer": "respond-async"}
        version = options.get("version")
        body = encode_json({"requests": documents} | ({"version": version} if version else {}))
        call = HttpCall("POST", jobs_path(model), headers, body, _ANSWER_GRACE_S * 4)
        try:
            reply = yield from self._exchange(call)
        except TidegateError as error:
            if error.status not in _NO_SUCH_ROUTE or error.code == "model_not_found":
                raise
            return (yield from self._submit_each(model, many, options))
        return _batch(decode_document(reply.body), len(many))

    def status(self, job_id: str) -> Operation[JobStatus]:
        """Where a job stands now."""
        reply = yield from self._exchange(HttpCall("GET", job_path(job_id)))
        return job_status(decode_document(reply.body))

    def wait(self, job_id: str, timeout_s: float | None) -> Operation[JobStatus]:
        """Wait for a job's end. Raises WaitTimeoutError."""
        return (yield from self._wait(job_id, self.until_s(timeout_s), timeout_s or 0.0))

    def result(self, job_id: str, timeout_s: float | None) -> Operation[Result]:
        """A job's result, once it has ended. Raises the job's error, or WaitTimeoutError."""
        return (yield from self._result(job_id, self.until_s(timeout_s), timeout_s or 0.0))

    def cancel(self, job_id: str) -> Operation[JobStatus]:
        """Cancel a job; one that has ended stays as it is. The job's status then."""
        try:
            reply = yield from self._exchange(HttpCall("DELETE", job_path(job_id)))
        except ConflictError:  # it has ended before
            return (yield from self.status(job_id))
        if reply.body:
            return job_status(decode_document(reply.body))
        return (yield from self.status(job_id))

    def statuses(self, job_ids: Sequence[str], wait_s: int = 0) -> Operation[dict[str, JobStatus | TidegateError]]:
        """Where jobs stand now, by one call that waits up to `wait_s` for one of them to end; where that cannot be, one
        by one.
        """
        found: dict[str, JobStatus | TidegateError] = {}
        path = f"/v1/jobs/status?wait={wait_s}" if wait_s else "/v1/jobs/status"
        body = encode_json({"ids": list(job_ids)})
        call = HttpCall("POST", path, {"content-type": JSON}, body, wait_s + _ANSWER_GRACE_S)
        try:
            reply = yield from self._exchange(call)
        except TidegateError as error:
            if error.status not in _NO_SUCH_ROUTE:
                raise
            for job_id in job_ids:
                try:
                    found[job_id] = yield from self.status(job_id)
                except TidegateError as error:
                    if error.retryable or not error.status:
                        raise
                    found[job_id] = error
            return found
        return dict(zip(job_ids, _batch(decode_document(reply.body), len(job_ids)), strict=True))

    def models(self) -> Operation[list[ModelStatus]]:
        """All model versions that this caller may see."""
        call = HttpCall("POST", "/v2/repository/index", {"content-type": JSON}, b"{}")
        reply = yield from self._exchange(call)
        return model_statuses(decode_document(reply.body))

    def metadata(self, model: str | None, version: str) -> Operation[dict[str, Any]]:
        """What a model takes and gives, or with None what the server is."""
        reply = yield from self._exchange(HttpCall("GET", "/v2" if model is None else model_path(model, version)))
        document: dict[str, Any] = decode_document(reply.body)
        return document

    def ready(self, model: str | None, version: str) -> Operation[bool]:
        """Whether the gateway, or a model, takes requests now. Asked once; raises NoAnswerError without an answer."""
        path = "/v2/health/ready" if model is None else f"{model_path(model, version)}/ready"
        try:
            yield from exchange(HttpCall("GET", path), Retries(attempts=1), self._clock)
        except TidegateError as error:
            if error.status in (404, 503):
                return False
            raise
        return True

    def until_s(self, timeout_s: float | None) -> float:
        """When a wait of so long ends, by this client's clock."""
        return math.inf if timeout_s is None else self._clock.now_s() + timeout_s

    def left_s(self, until_s: float) -> float:
        """How long it is until then."""
        return max(0.0, until_s - self._clock.now_s())

    def _exchange(self, call: HttpCall, until_s: float = math.inf) -> Operation[HttpReply]:
        return (yield from exchange(call, self._retries, self._clock, until_s=until_s))

    def _wait(self, job_id: str, until_s: float, timeout_s: float) -> Operation[JobStatus]:
        pace_s = _FIRST_PACE_S
        while True:
            begun_s = self._clock.now_s()
            wait_s = math.floor(min(_LONG_POLL_S, self.left_s(until_s)))
            path = f"{job_path(job_id)}?wait={wait_s}" if wait_s else job_path(job_id)
            reply = yield from self._exchange(HttpCall("GET", path, {}, b"", wait_s + _ANSWER_GRACE_S), until_s)
            status = job_status(decode_document(reply.body))
            if status.ended:
                return status
            left_s = self.left_s(until_s)
            if left_s <= 0:
                raise WaitTimeoutError(job_id, timeout_s)
            if self._clock.now_s() - begun_s < wait_s / 2 or not wait_s:  # a gateway that does not hold the answer
                yield Pause(min(pace_s, left_s))
                pace_s = min(2 * pace_s, _LAST_PACE_S)

    def _result(self, job_id: str, until_s: float, timeout_s: float) -> Operation[Result]:
        accept, has_ended = OCTETS if self._binary else JSON, False
        while True:
            call = HttpCall("GET", f"{job_path(job_id)}/result", {"accept": f"{accept}, {JSON};q=0.5"})
            reply = yield from self._exchange(call)
            if reply.status in _ELSEWHERE:  # a large one is fetched from the object store
                reply = yield from self._exchange(HttpCall("GET", reply.headers.get("location", "")))
            if reply.status != 202:
                return decode_result(reply.headers, reply.body)
            if has_ended:  # another gateway's view may be a moment older
                yield Pause(_LAST_PACE_S)
            yield from self._wait(job_id, until_s, timeout_s)
            has_ended = True

    def _request(
        self,
        model: str,
        inputs: Inputs,
        options: SubmitOptions | RequestOptions,
        extra: Mapping[str, str],
        read_timeout_s: float,
        *,
        repeatable: bool,
    ) -> Operation[HttpCall]:
        yield from self._learn(model, [inputs], options)
        tensors = tensors_of(inputs, self._known(model, options))
        outputs, id_, parameters = options.get("outputs", ()), options.get("id", ""), parameters_of(options)
        headers = {**headers_of(options), **extra}
        if self._binary:
            body, length = encode_binary(tensors, outputs, id_, parameters)
            headers |= {"content-type": OCTETS, HEADER_LENGTH: str(length)}
        else:
            body = encode_json(request_document(tensors, outputs, id_, parameters))
            headers["content-type"] = JSON
        return HttpCall("POST", infer_path(model, options), headers, body, read_timeout_s, repeatable)

    def _documents(self, model: str, many: Sequence[Inputs], options: SubmitOptions) -> Operation[list[dict[str, Any]]]:
        yield from self._learn(model, many, options)
        known, parameters = self._known(model, options), parameters_of(options)
        outputs, id_ = options.get("outputs", ()), options.get("id", "")
        return [request_document(tensors_of(inputs, known), outputs, id_, parameters) for inputs in many]

    def _submit_each(
        self, model: str, many: Sequence[Inputs], options: SubmitOptions
    ) -> Operation[list[JobStatus | TidegateError]]:
        submitted: list[JobStatus | TidegateError] = []
        for number, inputs in enumerate(many):
            one = options.copy()
            if key := options.get("idempotency_key"):
                one["idempotency_key"] = f"{key}-{number}"
            try:
                submitted.append((yield from self.submit(model, inputs, one)))
            except TidegateError as error:
                if not error.status:
                    raise
                submitted.append(error)
        return submitted

    def _learn(self, model: str, many: Sequence[Inputs], options: RequestOptions) -> Operation[None]:
        """Ask what the model takes, once, if there are plain lists whose datatype only it can say."""
        version = options.get("version", "")
        if (model, version) in self._datatypes or not any(needed_datatypes(inputs) for inputs in many):
            return
        document = yield from self.metadata(model, version)
        if len(self._datatypes) >= _MAX_MODELS:
            self._datatypes.clear()
        self._datatypes[model, version] = {each["name"]: each["datatype"] for each in document.get("inputs", ())}

    def _known(self, model: str, options: RequestOptions) -> Mapping[str, str]:
        return self._datatypes.get((model, options.get("version", "")), {})


def _batch(document: Any, count: int) -> list[JobStatus | TidegateError]:
    """The jobs of an answer about many, each a job's document or what is wrong with it."""
    jobs = document.get("jobs") if isinstance(document, dict) else document
    if not isinstance(jobs, list) or len(jobs) != count:
        raise UnreadableAnswerError("unreadable_answer", f"the answer does not tell of {count} jobs")
    found: list[JobStatus | TidegateError] = []
    for job in jobs:
        if isinstance(job, dict) and "state" not in job:
            error = job.get("error")
            found.append(error_of_problem(error if isinstance(error, dict) else job))
        else:
            found.append(job_status(job))
    return found
