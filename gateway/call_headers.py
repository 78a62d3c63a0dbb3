"""Call headers: the request parameters that say how a request is run, as HTTP headers for bodies without JSON.

A header wins over the parameter of the same meaning: whoever sends a body on, a proxy or a client library, can set it
without reading the body. Knows no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schemas.errors import invalid

_MAX_DIGITS = 15  # as microseconds it is still exact in JSON
_WEBHOOK = b"tidegate-webhook"
# By header: the parameter of the same meaning, and how many of its units one of the header's is.
_NUMBERS = {
    b"tidegate-timeout-ms": ("timeout", 1000),
    b"tidegate-deadline-ms": ("deadline_ms", 1),
    b"tidegate-execution-timeout-ms": ("execution_timeout_ms", 1),
    b"tidegate-priority": ("priority", 1),
}
_NAMES = frozenset({*_NUMBERS, _WEBHOOK})


def has_call_headers(sent: Mapping[bytes, bytes]) -> bool:
    """Whether any of these headers is there. Asked for each request: one call into C."""
    return not _NAMES.isdisjoint(sent)


def with_headers(parameters: dict[str, Any], sent: Mapping[bytes, bytes]) -> dict[str, Any]:
    """The request's parameters and what its headers say. Raises InferenceError(INVALID_REQUEST) naming the header."""
    said = {}
    for header, (name, factor) in _NUMBERS.items():
        text = sent.get(header)
        if text is None:
            continue
        if not text.isdigit() or len(text) > _MAX_DIGITS - (len(str(factor)) - 1):
            raise invalid(
                f"the header {header.decode()} is no whole number",
                field=header.decode(),
                value=text.decode("latin-1"),
                remedy="send digits only, 0 for none; times are in milliseconds",
            )
        said[name] = int(text) * factor
    return {**parameters, **said} if said else parameters
