"""Traceparent: the W3C trace context that a request came with, or a new one. Knows no tracing library."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

_VALID = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_in(sent: Mapping[bytes, bytes]) -> bytes:
    """The header as it came, when it is valid; else that of a new trace."""
    traceparent = sent.get(b"traceparent", b"")
    if _VALID.fullmatch(traceparent):
        return traceparent
    return b"00-%032x-%016x-00" % (random.getrandbits(128) | 1, random.getrandbits(64) | 1)
