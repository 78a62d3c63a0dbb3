"""Caller: who sends a request, and what they may do. Knows no protocol and no way to prove who one is."""

from __future__ import annotations

from collections.abc import MutableMapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from schemas.errors import ErrorCode, InferenceError

OPERATIONS = ("infer", "jobs", "read", "manage")


class Caller(msgspec.Struct, frozen=True):
    """An identity. `tenant` is whose jobs these are; tenants cannot see each other's. `name` is for logs.

    `scopes` are operation:model, each part a pattern of the shell's kind: "infer:*" runs every model, "read:resnet*"
    reads about some, "*:*" may everything. Operations: infer (run and submit), jobs (status, results, cancelling),
    read (metadata, statistics, backlog), manage (load, unload, redeliver).
    """

    tenant: str = ""
    name: str = "anonymous"
    scopes: tuple[str, ...] = ("*:*",)

    def may(self, operation: str, model: str = "*") -> bool:
        """Whether the caller may do this with that model; "*": with the installation as a whole."""
        return any(_covers(scope, operation, model) for scope in self.scopes)

    def may_some(self, operation: str) -> bool:
        """Whether the caller may do this with any model at all."""
        return any(fnmatchcase(operation, scope.partition(":")[0]) for scope in self.scopes)

    def require(self, operation: str, model: str = "*") -> None:
        """Raise InferenceError(PERMISSION_DENIED) unless the caller may."""
        if not self.may(operation, model):
            raise InferenceError(
                ErrorCode.PERMISSION_DENIED,
                f"{self.name} has no scope {operation}:{model}",
                field="scope",
                value=" ".join(self.scopes),
                remedy=f"ask for a key or token with the scope {operation}:{model}",
            )


ANYONE = Caller()  # where nothing is configured, everyone may do everything


def _covers(scope: str, operation: str, model: str) -> bool:
    allowed, _, models = scope.partition(":")
    return fnmatchcase(operation, allowed) and fnmatchcase(model, models or "*")


def caller_in(scope: MutableMapping[str, Any]) -> Caller:
    """Who sent the request of this ASGI scope, as the access check noted it; ANYONE where nothing is configured."""
    caller = scope.get("state", {}).get("caller", ANYONE)
    assert isinstance(caller, Caller)  # nobody else writes there
    return caller
