"""AccessLog: one line per answer, `access`, with who asked for what and how it ended; never a secret, never a body.

Knows no route. Whoever writes asks `wants` first: it costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

_log = structlog.get_logger("gateway.access")

_FROM_STATUS = {"none": 1000, "errors": 500, "all": 0}
_ERRORS_PER_S = 20  # while a broker is away every answer is an error, and each says the same


class AccessLog:
    """`level` is none, errors (answers from 500 on) or all. Of errors at most 20 lines a second are written, and how
    many were not.
    """

    def __init__(self, level: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.from_status = _FROM_STATUS[level]
        self._is_limited = level == "errors"
        self._now_s = now_s
        self._second = 0
        self._written = 0
        self._left_out = 0

    def wants(self, status: int) -> bool:
        """Whether an answer of this status is to be written."""
        return status >= self.from_status

    def write(self, **fields: Any) -> None:
        """Write a line, unless too many errors have been written this second."""
        if self._is_limited:
            second = int(self._now_s())
            if second != self._second:
                self._second, self._written = second, 0
            self._written += 1
            if self._written > _ERRORS_PER_S:
                self._left_out += 1
                return
            if self._left_out:
                fields["left_out"], self._left_out = self._left_out, 0
        _log.info("access", **fields)
