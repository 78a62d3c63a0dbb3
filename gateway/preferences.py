"""Preferences: what a caller prefers, by the header Prefer (RFC 7240). Pure; knows no route."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_QUOTED = r'"(?:[^"\\]|\\.)*"'
# One preference of a list: its name, its value if it has one, then parameters up to the next comma outside of quotes.
_PREFERENCE = re.compile(
    rf"\s*([^\s=;,\"]+)\s*(?:=\s*({_QUOTED}|[^\s;,\"]*))?\s*(?=;|,|$)((?:{_QUOTED}|[^,\"])*)(?:,|$)|[^,]*(?:,|$)"
)
_SECONDS = re.compile(r"[0-9]{1,9}")
_MAX_CHARS = 1024  # beyond it nobody prefers anything; a pattern with quotes may look at a text many times


class Preferences(msgspec.Struct, frozen=True):
    """What of RFC 7240 we honour: respond-async, and wait in seconds."""

    respond_async: bool = False
    wait_s: int | None = None

    @property
    def detached(self) -> bool:
        """Whether the caller does not want to wait at all."""
        return self.respond_async and self.wait_s is None

    def wait_ms(self, most_ms: int) -> int:
        """How long to wait, at most `most_ms`."""
        return most_ms if self.wait_s is None else min(most_ms, self.wait_s * 1000)

    def applied(self, *, accepted: bool, most_ms: int | None = None) -> bytes:
        """The Preference-Applied header; empty when there is nothing to say. `accepted`: the answer is a job. A wait
        that was cut to `most_ms` is told as long as it really is.
        """
        parts = []
        if self.respond_async and accepted:
            parts.append("respond-async")
        if self.wait_s is not None:
            parts.append(f"wait={self.wait_s if most_ms is None else self.wait_ms(most_ms) // 1000}")
        return ", ".join(parts).encode()


NO_PREFERENCES = Preferences()


def parse_preferences(values: Iterable[bytes]) -> Preferences:
    """Read Prefer headers. What is unknown or malformed is ignored and the first of a name counts, as the RFC wants;
    a value may be quoted, and one that is empty is none.
    """
    found: dict[str, str] = {}
    text = b",".join(values).decode("latin-1")[:_MAX_CHARS]
    at = 0
    while at < len(text):
        match = _PREFERENCE.match(text, at)
        if match is None or match.end() == at:  # an unclosed quote: nothing behind it can be told apart
            break
        at = match.end()
        if match[1]:
            found.setdefault(match[1].lower(), (match[2] or "").strip('"'))
    # A preference's value is part of what it is: respond-async=no is none of ours.
    wait = found.get("wait", "")
    return Preferences(found.get("respond-async") == "", int(wait) if _SECONDS.fullmatch(wait) else None)
