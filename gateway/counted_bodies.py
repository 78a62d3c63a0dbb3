"""CountedBodies: what routes read of bodies counts to the gateway's byte budget. Stands in front of the routes."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.byte_budget import ByteBudget


class CountedBodies:
    """An ASGI application in front of another one; reading raises InferenceError where the budget is spent."""

    def __init__(self, app: ASGIApp, *, budget: ByteBudget) -> None:
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and give the bytes back when it is answered."""
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        held = self._budget.hold()

        async def counted() -> Message:
            message = await receive()
            if body := message.get("body"):
                held.grow_to(held.size_bytes + len(body))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            held.release()
