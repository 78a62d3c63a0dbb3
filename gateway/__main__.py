"""`python -m gateway`: settings, logs, event loop, exit code. Knows nothing of what the service does."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import structlog
import uvloop
from pydantic import ValidationError
from pydantic_settings import CliApp

from gateway.models import server_version
from gateway.service import Service
from gateway.settings import GatewaySettings, remedy
from schemas.tracing import is_wanted, set_up

_log = structlog.get_logger("gateway")

_REPEATING = ("aiokafka", "opentelemetry", "urllib3")


class _Unrepeated(logging.Filter):
    """Lets each message of a library pass once in ten seconds: clients repeat theirs while a broker is away."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_at_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        key = f"{record.name} {record.msg}"
        if now_s - self._passed_at_s.get(key, -1e9) < 10:
            return False
        self._passed_at_s[key] = now_s
        return True


def set_up_logs() -> None:
    """One JSON object per line on stderr, for our own lines and those of libraries."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for library in ("aiokafka", "uvicorn"):
        logging.getLogger(library).setLevel(logging.WARNING)
    handler.addFilter(lambda record: not record.name.startswith(_REPEATING) or unrepeated.filter(record))
    unrepeated = _Unrepeated()


def main() -> int:
    """Run one gateway; 0 after an orderly stop, 1 after a failure, 2 for settings that cannot be used."""
    try:
        settings = CliApp.run(GatewaySettings)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            field = str(fault["loc"][0]) if fault["loc"] else ""
            print(f"gateway: {field}: {fault['msg']}; {remedy(field)}", file=sys.stderr)
        return 2
    set_up_logs()
    stop_tracing = _trace()
    try:
        uvloop.run(Service(settings).run())
    except Exception:  # the last resort of a process: whatever it was, say it in the log and exit with an error
        _log.exception("gateway_failed")
        return 1
    finally:
        stop_tracing()
    return 0


def _trace() -> Callable[[], None]:
    """Begin to send spans, if the environment asks for them; returns what ends it."""
    if is_wanted():
        try:
            return set_up("tidegate-gateway", server_version())
        except ImportError as error:
            _log.warning("no_spans", error=repr(error), remedy="install the extra telemetry")
    return lambda: None


if __name__ == "__main__":
    sys.exit(main())
