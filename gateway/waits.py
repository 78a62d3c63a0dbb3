"""Waits: how long a caller of a job route wants to wait, from the request's query. Knows no job."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.errors import invalid

_MAX_CHARS = 12


def wait_of(query: Mapping[str, str], most_s: float) -> float:
    """`?wait=` in seconds, at most `most_s`; 0 without. Raises InferenceError(INVALID_REQUEST)."""
    text = query.get("wait")
    if text is None:
        return 0.0
    digits = text.replace(".", "", 1)
    if not (digits.isascii() and digits.isdigit()) or len(text) > _MAX_CHARS:
        raise invalid(
            "the wait is no number of seconds",
            field="wait",
            value=text,
            remedy=f"send seconds such as wait=30; this gateway waits {most_s:g} s at most",
        )
    return min(most_s, float(text))


def waits_for_start(query: Mapping[str, str]) -> bool:
    """`?wait_for=`: started or finished, the default. Raises InferenceError(INVALID_REQUEST)."""
    text = query.get("wait_for", "finished")
    if text not in ("started", "finished"):
        raise invalid("nobody can wait for that", field="wait_for", value=text, remedy="wait_for=started or finished")
    return text == "started"
