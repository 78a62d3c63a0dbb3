"""Operation: what the OpenAPI document says of one route and method, in few words, and how that is written out.

Knows no route; the tables are in gateway/openapi_*.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.problem import problem_of
from schemas.errors import ErrorCode, InferenceError

JSON = "application/json"
OCTETS = "application/octet-stream"
PROBLEM = "application/problem+json"
# What any route may answer, whatever it does: who asks, how much, and what nobody foresaw.
_ANYWHERE = (
    ErrorCode.REQUEST_TIMEOUT,
    ErrorCode.OVERLOADED,
    ErrorCode.HEADERS_TOO_LARGE,
    ErrorCode.INTERNAL,
)
_IDENTIFIED = (ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED)
_ANSWER_HEADERS = ("x-request-id", "traceparent")


class Content(msgspec.Struct, frozen=True):
    """A body: the name of its schema, or the schema itself, and examples by name."""

    schema: str | dict[str, Any]
    media_type: str = JSON
    examples: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """As a media type object."""
        schema = {"$ref": f"#/components/schemas/{self.schema}"} if isinstance(self.schema, str) else self.schema
        document: dict[str, Any] = {"schema": schema}
        if self.examples:
            document["examples"] = {name: {"value": value} for name, value in self.examples.items()}
        return document


class Answer(msgspec.Struct, frozen=True):
    """An answer of one status. `headers` are names of header components."""

    description: str
    contents: tuple[Content, ...] = ()
    headers: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As a response object."""
        names = (*self.headers, *_ANSWER_HEADERS)
        document: dict[str, Any] = {
            "description": self.description,
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        }
        if self.contents:
            document["content"] = {content.media_type: content.document() for content in self.contents}
        return document


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path.

    `scope` is the operation that the caller needs for it, empty where nobody is asked who he is. `parameters` are names
    of parameter components; those of the path are found in it. `codes` are the errors beside those of every route.
    """

    method: str
    path: str
    id: str
    tag: str
    summary: str
    description: str = ""
    scope: str = "read"
    parameters: tuple[str, ...] = ()
    body: tuple[Content, ...] = ()
    is_body_required: bool = True
    answers: dict[int, Answer]
    codes: tuple[ErrorCode, ...] = ()

    def document(self) -> dict[str, Any]:
        """As an operation object."""
        in_path = [part[1:-1] for part in self.path.split("/") if part.startswith("{")]
        needs = f"\n\nScope: `{self.scope}`." if self.scope else ""
        document: dict[str, Any] = {
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "description": (self.description or self.summary) + needs,
            "parameters": [
                {"$ref": f"#/components/parameters/{name}"}
                for name in (*in_path, *self.parameters, "x-request-id", "traceparent")
            ],
            "responses": self._responses(),
        }
        if self.body:
            content = {content.media_type: content.document() for content in self.body}
            document["requestBody"] = {"required": self.is_body_required, "content": content}
        if not self.scope:
            document["security"] = []
        return document

    def _responses(self) -> dict[str, Any]:
        responses = {str(status): answer.document() for status, answer in self.answers.items()}
        by_status: dict[int, list[ErrorCode]] = {}
        for code in dict.fromkeys((*self.codes, *(_IDENTIFIED if self.scope else ()), *_ANYWHERE)):
            by_status.setdefault(code.http_status, []).append(code)
        for status, codes in by_status.items():
            answer = _refused(codes).document()
            if str(status) in responses:  # as of readiness, which is 503 with a document of its own
                responses[str(status)]["content"] = {**responses[str(status)]["content"], **answer["content"]}
            else:
                responses[str(status)] = answer
        return dict(sorted(responses.items()))


def _refused(codes: list[ErrorCode]) -> Answer:
    examples = {code.wire: msgspec.to_builtins(problem_of(_EXAMPLES.get(code) or _plain(code))) for code in codes}
    headers = ("Retry-After",) if any(code.retryable for code in codes) else ()
    return Answer(" or ".join(code.wire for code in codes), (Content("Problem", PROBLEM, examples),), headers)


def _plain(code: ErrorCode) -> InferenceError:
    return InferenceError(code, code.wire.replace("_", " "))


_EXAMPLES = {
    ErrorCode.INVALID_REQUEST: InferenceError(
        ErrorCode.INVALID_REQUEST,
        "input 'image' is INT32, model 'digits' takes FP32",
        field="inputs.image.datatype",
        value="INT32",
        remedy="send FP32",
    ),
    ErrorCode.MODEL_NOT_FOUND: InferenceError(
        ErrorCode.MODEL_NOT_FOUND,
        "there is no model 'digit'",
        field="model",
        value="digit",
        remedy="check the name; a model is known once a worker of its pool has announced it",
    ),
    ErrorCode.JOB_NOT_FOUND: InferenceError(
        ErrorCode.JOB_NOT_FOUND,
        "there is no such job",
        field="id",
        value="AUr6ai4N",
        remedy="use the id from the 202 response as it is; ids hold within one installation",
    ),
    ErrorCode.OVERLOADED: InferenceError(
        ErrorCode.OVERLOADED,
        "1024 requests are in flight, as many as this gateway takes",
        remedy="try again later, or submit with the header Prefer: respond-async",
    ),
    ErrorCode.UNAVAILABLE: InferenceError(
        ErrorCode.UNAVAILABLE, "this gateway takes no requests now", remedy="try again"
    ),
    ErrorCode.INTERNAL: InferenceError(ErrorCode.INTERNAL, "an unexpected KeyError; the log says more"),
}
