"""AccessLog: one line per answer, `access`, with who asked for what and how it ended; never a secret, never a body.

Knows no route. Whoever writes asks `wants` first: it costs nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

_FROM_STATUS = {"none": 1000, "errors": 500, "all": 0}
_ERRORS_PER_S = 20  # while a broker is away every answer is an error, and each says the same


class AccessLog:
    """`level` is none, errors (answers from 500 on) or all. Of errors at most 20 lines a second are written, and how
    many were not.
    """

    def __init__(self, level: str, *, now_s: Callable[[], float] = time.monotonic, logger: Any = None) -> None:
        """`logger`: where the lines go, for tests; without one they go to stderr."""
        self._log = logger if logger is not None else _quick_logger()
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
        self._log.info("access", **fields)


def _quick_logger() -> Any:
    """Lines as those of all other loggers, on the same stream, for a quarter of the time: without the library's own
    loggers in between.
    """
    logger: Any = structlog.wrap_logger(
        structlog.BytesLogger(sys.stderr.buffer),
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            lambda logger, method, line: msgspec.json.encode(line),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    return logger.bind(logger="gateway.access")
