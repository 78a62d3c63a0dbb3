"""FakeGateway: answers the client as a gateway would, in memory. Its models echo; its jobs end when a test says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx

from schemas.request import InferenceRequest
from schemas.response import InferenceResponse
from schemas.v2 import HEADER_LENGTH, decode_request, encode_response, wants_binary

METADATA = {
    "name": "echo",
    "versions": ["1"],
    "platform": "echo",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}, {"name": "t", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
}


@dataclass
class FakeGateway:
    """`seen` are all requests. With `hands_over` a synchronous request becomes a job. `refusals` are answered first."""

    seen: list[httpx.Request] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)
    asked: dict[str, InferenceRequest] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    refusals: list[httpx.Response | Exception] = field(default_factory=list)
    hands_over: bool = False
    has_batches: bool = True
    on_status: Callable[[str], None] = lambda job_id: None
    error: dict[str, Any] | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        if self.refusals:
            refusal = self.refusals.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return refusal
        parts = [unquote(part) for part in request.url.raw_path.decode().partition("?")[0].split("/")[1:]]
        match (request.method, *parts):
            case ("POST", "v2", "models", model, *_, "infer"):
                return self._infer(request, model)
            case ("GET", "v2", "models", _, "ready") | ("GET", "v2", "health", "ready"):
                return httpx.Response(200, json={"ready": True})
            case ("GET", "v2", "models", _):
                return httpx.Response(200, json=METADATA)
            case ("GET", "v2"):
                return httpx.Response(200, json={"name": "tidegate", "version": "1", "extensions": []})
            case ("POST", "v2", "repository", "index"):
                return httpx.Response(200, json=[{"name": "echo", "version": "1", "state": "READY", "reason": ""}])
        return self._of_jobs(request, parts)

    def _of_jobs(self, request: httpx.Request, parts: list[str]) -> httpx.Response:
        match (request.method, *parts):
            case ("POST", "v1", "models", _, "jobs") if self.has_batches:
                return self._batch(request)
            case ("POST", "v1", "jobs", "status") if self.has_batches:
                return httpx.Response(200, json={"jobs": [self._document(id_) for id_ in _json(request)["ids"]]})
            case ("GET", "v1", "jobs", job_id):
                self.on_status(job_id)
                return httpx.Response(200, json=self._document(job_id))
            case ("GET", "v1", "jobs", job_id, "result"):
                return self._result(request, job_id)
            case ("DELETE", "v1", "jobs", job_id):
                return self._cancel(job_id)
        return problem(404, "not_found")

    def _infer(self, request: httpx.Request, model: str) -> httpx.Response:
        asked = _request(request)
        if request.headers.get("prefer") == "respond-async" or self.hands_over:
            job_id = self._submit(asked, request.headers.get("idempotency-key", f"no-key-{len(self.jobs)}"))
            return httpx.Response(202, json=self._document(job_id), headers={"location": f"/v1/jobs/{job_id}"})
        return _answer(asked, model)

    def _submit(self, asked: InferenceRequest, key: str) -> str:
        job_id = self.by_key.setdefault(key, f"job/{len(self.jobs)}")
        self.asked[job_id] = asked
        self.jobs.setdefault(job_id, "queued")
        return job_id

    def _batch(self, request: httpx.Request) -> httpx.Response:
        documents: list[dict[str, Any]] = []
        key = request.headers["idempotency-key"]
        for number, each in enumerate(_json(request)["requests"]):
            if each["inputs"][0]["name"] == "bad":
                documents.append({"error": {"code": "invalid_request", "detail": "no such input", "status": 400}})
            else:
                asked = decode_request(json.dumps(each).encode())
                documents.append(self._document(self._submit(asked, f"{key}/{number}")))
        return httpx.Response(202, json={"jobs": documents})

    def _document(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.jobs:
            return {"error": {"code": "job_not_found", "detail": "there is no such job", "status": 404}}
        document: dict[str, Any] = {"id": job_id, "model": "echo", "state": self.jobs[job_id], "position": 3}
        if self.jobs[job_id] == "failed":
            document["error"] = self.error
        return document

    def _result(self, request: httpx.Request, job_id: str) -> httpx.Response:
        state = self.jobs[job_id]
        if state in ("queued", "running"):
            return httpx.Response(202, json=self._document(job_id))
        if state == "failed":
            return problem(500, "model_failed")
        if state == "cancelled":
            return problem(499, "cancelled")
        return _answer(self.asked[job_id], "echo")

    def _cancel(self, job_id: str) -> httpx.Response:
        if self.jobs[job_id] not in ("queued", "running"):
            return problem(409, "conflict")
        self.jobs[job_id] = "cancelled"
        return httpx.Response(200, json=self._document(job_id))


def problem(status: int, code: str, *, retryable: bool = False, **headers: str) -> httpx.Response:
    document = {"code": code, "detail": f"it is {code}", "status": status, "retryable": retryable}
    return httpx.Response(
        status, json=document, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def _json(request: httpx.Request) -> Any:
    return json.loads(request.content)


def _request(request: httpx.Request) -> InferenceRequest:
    length = request.headers.get(HEADER_LENGTH)
    return decode_request(request.content, None if length is None else int(length))


def _answer(asked: InferenceRequest, model: str) -> httpx.Response:
    response = InferenceResponse(model, "1", asked.inputs, asked.id, {"queue_us": 5})
    body, length = encode_response(response, binary=wants_binary(asked))
    headers = {"x-request-id": "r-1"} | ({} if length is None else {HEADER_LENGTH: str(length)})
    return httpx.Response(200, content=body, headers=headers)
