"""Accept: which of the representations on offer a caller likes best (RFC 9110, section 12.5.1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_CHARS = 2048


def best_of(offered: Sequence[str], accept: str) -> str | None:
    """The media type of `offered` that an Accept header likes best, the first among equals; None: it takes none.

    An absent header takes anything. The most specific range decides; parameters other than q are ignored.
    """
    ranges = _ranges(accept[:_MAX_CHARS])
    if not ranges:
        return offered[0]
    best, best_quality = None, 0.0
    for media_type in offered:
        quality = _quality(media_type, ranges)
        if quality > best_quality:
            best, best_quality = media_type, quality
    return best


def _quality(media_type: str, ranges: dict[str, float]) -> float:
    for range_ in (media_type, f"{media_type.partition('/')[0]}/*", "*/*"):
        if range_ in ranges:
            return ranges[range_]
    return 0.0


def _ranges(accept: str) -> dict[str, float]:
    """Quality by media range; what cannot be read is left out."""
    ranges: dict[str, float] = {}
    for part in accept.lower().split(","):
        range_, *parameters = (piece.strip() for piece in part.split(";"))
        if "/" not in range_:
            continue
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                quality = _number(value.strip())
        ranges[range_] = max(ranges.get(range_, 0.0), quality)
    return ranges


def _number(text: str) -> float:
    digits = text.replace(".", "", 1)
    return min(1.0, float(text)) if digits.isascii() and digits.isdigit() and len(text) <= 8 else 0.0
