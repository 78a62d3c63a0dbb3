"""AccessCheck: what stands in front of the routes. Notes who sends a request and asks whether they may do such a thing.

A route knows more, such as the model of a job, and asks again (`caller_in(request.scope).require(...)`). What is in no
row of the table is taken for reading about the whole installation, so a new route is never open by oversight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access import Access
from gateway.caller import Caller
from gateway.problem import problem_response
from schemas.errors import InferenceError

# (path, operation of a look, operation of a change); the group "model" narrows it down to one. None: of some model.
_TABLE = tuple(
    (re.compile(path), look, change, some)
    for path, look, change, some in (
        (r"/v2/models/stats", "read", "read", True),
        (r"/v2/models/(?P<model>[^/]+)(/versions/[^/]+)?/infer", "read", "infer", False),
        (r"/v2/models/(?P<model>[^/]+)(/.*)?", "read", "read", False),
        (r"/v2/repository/([^/]+/)?index", "read", "read", True),
        (r"/v2/repository/([^/]+/)?models/(?P<model>[^/]+)/.*", "manage", "manage", False),
        (r"/v2/?", "read", "read", True),
        (r"/v1/models/(?P<model>[^/]+)/jobs", "infer", "infer", False),
        (r"/v1/jobs(/.*)?", "jobs", "jobs", True),
        (r"/status(/.*)?", "read", "read", True),
    )
)


class Need:
    """What a request needs: an operation on a model, or on some model."""

    __slots__ = ("model", "operation", "some")

    def __init__(self, operation: str, model: str = "*", *, some: bool = False) -> None:
        self.operation = operation
        self.model = model
        self.some = some

    def check(self, caller: Caller) -> None:
        """Raise InferenceError(PERMISSION_DENIED) unless the caller has it."""
        if not (self.some and caller.may_some(self.operation)):
            caller.require(self.operation, self.model)


def need_of(method: str, path: str) -> Need:
    """What a request of this method to this path needs."""
    for pattern, look, change, some in _TABLE:
        if match := pattern.fullmatch(path):
            operation = look if method in ("GET", "HEAD", "OPTIONS") else change
            return Need(operation, match.groupdict().get("model") or "*", some=some)
    return Need("read")


class AccessCheck:
    """An ASGI application in front of another one."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        open_paths: Iterable[str] = (),
        manage: bool = False,
        on_refused: Callable[[Scope, InferenceError], None] = lambda scope, error: None,
    ) -> None:
        """`open_paths` need nothing; one that ends in / stands for all below it. `manage`: all else needs manage.

        `on_refused` is told of who is turned away.
        """
        self._app = app
        self._access = access
        self._open = frozenset(path for path in open_paths if not path.endswith("/"))
        self._open_below = tuple(path for path in open_paths if path.endswith("/"))
        self._manage = manage
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401, 403 or 503."""
        path: str = scope["path"]
        if self._access.is_open or path in self._open or path.startswith(self._open_below):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._access.caller(dict(scope["headers"]))
            need = need_of(scope["method"], path)
            if self._manage:
                need = Need("manage", need.model)
            need.check(caller)
        except InferenceError as error:
            self._on_refused(scope, error)
            await refuse(error, scope, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)


async def refuse(error: InferenceError, scope: Scope, send: Send) -> None:
    """Answer a request with an error, its body unread."""
    status, headers, body = problem_response(error, request_id=scope.get("state", {}).get("request_id", ""))
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
