"""Management: the application on the management port: who may manage, and the routes for it. Knows no route itself."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.access import Access
from gateway.access_check import AccessCheck, refuse
from gateway.audit import log_refusal
from schemas.errors import ErrorCode, InferenceError


class Management:
    """An ASGI application. All of it needs the scope manage; who is turned away is noted in the log."""

    def __init__(self, router: ASGIApp, *, access: Access) -> None:
        self._is_open = access.is_open
        self._check = AccessCheck(router, access=access, manage=True, on_refused=_note)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        # Without keys whoever is on this machine may manage. A web page that is open in its browser may not.
        if self._is_open and any(name == b"origin" for name, _ in scope["headers"]):
            error = InferenceError(
                ErrorCode.PERMISSION_DENIED,
                "web pages may not manage a gateway that asks nobody for a key",
                field="origin",
                remedy="set TIDEGATE_API_KEYS_FILE and send a key, or send no header Origin",
            )
            _note(scope, error)
            await refuse(error, scope, send)
            return
        await self._check(scope, receive, send)


def origin_of(scope: Scope) -> str:
    """The address that a request came from, host:port; empty where there is none."""
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""


def _note(scope: Scope, error: InferenceError) -> None:
    log_refusal(f"{scope['method']} {scope['path']}", origin=origin_of(scope), error=error)
