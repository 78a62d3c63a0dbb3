"""ErrorPages: the page behind each problem document's `type`: what the error means and what to do about it.

Knows no route but its own.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.page import escape, html_page
from gateway.problem import error_type, routing_problem
from schemas.errors import ErrorCode


class Explanation(msgspec.Struct, frozen=True):
    """What an error means to a caller, and the remedy."""

    meaning: str
    remedy: str


EXPLANATIONS: dict[str, Explanation] = {
    "invalid_request": Explanation(
        "The request does not fit the protocol or the model: a field is missing, a shape or a datatype is another, a "
        "parameter is out of range.",
        "Read field, value and remedy in the answer. GET /v2/models/{model} says what the model takes.",
    ),
    "undecodable_record": Explanation(
        "A record in the model's request topic is no inference request, or an answer record cannot be read.",
        "If you produce to the topic yourself, write a v2 request as the documentation of records says. The record is "
        "among the dead letters with the reason.",
    ),
    "unauthenticated": Explanation(
        "Nothing proves who sends the request, or what should is not valid any more.",
        "Send an API key or a token, as Authorization: Bearer or x-api-key; get a new one if it has expired.",
    ),
    "permission_denied": Explanation(
        "The key or token is valid, but has no scope for this operation on this model.",
        "Ask whoever runs the gateway for the scope that the answer names.",
    ),
    "model_not_found": Explanation(
        "No worker has announced a model, version or pool of this name.",
        "POST /v2/repository/index lists the names. A model is known once a worker of its pool has announced it.",
    ),
    "job_not_found": Explanation(
        "The job id is none of this installation, was changed on its way, or is another tenant's.",
        "Use the id from the 202 answer as it is.",
    ),
    "not_acceptable": Explanation(
        "The result cannot be given in a form that the Accept header names.",
        "Accept application/json or application/octet-stream, or leave the header out.",
    ),
    "request_timeout": Explanation(
        "The request's head or body took longer to arrive than the gateway waits.",
        "Send again over a faster connection, or less at once.",
    ),
    "conflict": Explanation(
        "What was asked does not go with what is there: a job that has ended cannot be cancelled.",
        "Look at the job's status first.",
    ),
    "result_expired": Explanation(
        "The job ended and its result is not kept any more, or its topic was deleted.",
        "Submit it again; fetch results sooner, or ask for a webhook.",
    ),
    "payload_too_large": Explanation(
        "The body is larger than this gateway takes.",
        "Send less per request, send tensors raw rather than as JSON, or have TIDEGATE_MAX_BODY_BYTES raised.",
    ),
    "unsupported_media_type": Explanation(
        "The body's content type or content encoding is none that the gateway reads.",
        "Send application/json or application/octet-stream; plain, gzip or deflate.",
    ),
    "idempotency_mismatch": Explanation(
        "The Idempotency-Key was used before, with another request.",
        "Use a new key for each request, and the same only to repeat the same request.",
    ),
    "overloaded": Explanation(
        "More requests are waiting than may wait, or this one cannot be answered before its deadline.",
        "Come again after the seconds in Retry-After, allow more time, or submit a job with Prefer: respond-async.",
    ),
    "headers_too_large": Explanation(
        "The request's headers are larger than the gateway takes.",
        "Send fewer or shorter headers.",
    ),
    "cancelled": Explanation(
        "The job was cancelled, or its caller left before the request was complete.",
        "Nothing needs to be done; submit again if it was by mistake.",
    ),
    "model_failed": Explanation(
        "The model raised an error at this very input; its neighbours in the batch were answered.",
        "Correct the input, or have the model corrected: the request is among the dead letters and can be replayed.",
    ),
    "internal": Explanation(
        "Something unexpected happened in the gateway or in a worker. This is a fault of ours.",
        "Tell whoever runs the gateway the request_id: the log says more under it.",
    ),
    "unsupported": Explanation(
        "The protocol has this, this installation does not.",
        "Read the remedy in the answer; GET /v2 lists the extensions that work.",
    ),
    "model_load_failed": Explanation(
        "A worker could not load the model: a file is missing or broken, or it needs more memory than there is.",
        "The reason is in the answer. Workers try again at growing distances, so a corrected model comes by itself.",
    ),
    "unavailable": Explanation(
        "The gateway cannot take the request now: it is starting or stopping, or Kafka or the object store is away.",
        "Send it again after the seconds in Retry-After.",
    ),
    "deadline_exceeded": Explanation(
        "The request's own deadline passed before there was an answer; it was not run after that.",
        "Allow more time, or have workers added.",
    ),
    "execution_timeout": Explanation(
        "The model ran longer on the request than the request or the model allows.",
        "Send less at once, or raise execution_timeout_ms.",
    ),
    "not_found": Explanation("There is nothing at this path.", "GET /docs lists all paths."),
    "method_not_allowed": Explanation(
        "The path is there, but not for this method.", "The answer's Allow header names the methods that it takes."
    ),
}
_ROUTING = {"not_found": 404, "method_not_allowed": 405}


def error_routes() -> list[Route]:
    """What to mount: the page of each code, and a list of them."""
    return [
        Route("/errors", _get_all, methods=["GET"]),
        Route("/errors/{code}", _get, methods=["GET"]),
    ]


async def _get_all(request: Request) -> Response:
    rows = "".join(
        f'<tr><td><a href="{error_type(code)}"><code>{code}</code></a><td>{_status_of(code)}'
        f"<td>{escape(explained.meaning)}"
        for code, explained in EXPLANATIONS.items()
    )
    return html_page(
        "tidegate errors",
        "<main><h1>Errors</h1><p class=soft>Every error answer is a problem document (RFC 9457) with one of these "
        "codes.</p><table><thead><tr><th scope=col>code<th scope=col>status<th scope=col>meaning</thead>"
        f"<tbody>{rows}</tbody></table></main>",
    )


async def _get(request: Request) -> Response:
    code = request.path_params["code"]
    explained = EXPLANATIONS.get(code)
    if explained is None:
        headers, body = routing_problem(404)
        return Response(body, 404, {name.decode(): value.decode() for name, value in headers})
    again = (
        "Yes: the same request may succeed later. Come again after the seconds in Retry-After."
        if code not in _ROUTING and ErrorCode.from_wire(code).retryable
        else "No: sending the same request again changes nothing."
    )
    facts = [("Meaning", explained.meaning), ("What to do", explained.remedy), ("Worth repeating?", again)]
    rows = "".join(f"<h2>{heading}</h2><p>{escape(text)}</p>" for heading, text in facts)
    return html_page(
        f"tidegate: {code}",
        f"<main><p class=soft><a href=/errors>All errors</a></p><h1><code>{escape(code)}</code></h1>"
        f"<p class=soft>HTTP {_status_of(code)}{_grpc_of(code)}</p>{rows}</main>",
    )


def _status_of(code: str) -> str:
    status = _ROUTING.get(code) or ErrorCode.from_wire(code).http_status
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # 499 is of no standard
        return f"{status} Client Closed Request"


def _grpc_of(code: str) -> str:
    return "" if code in _ROUTING else f", gRPC {ErrorCode.from_wire(code).grpc_status}"
