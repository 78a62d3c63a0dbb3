"""`python -m gateway`: settings, logs, event loop, exit code. Knows nothing of what the service does."""

from __future__ import annotations

import logging
import sys
import time

import structlog
import uvloop
from pydantic import ValidationError
from pydantic_settings import CliApp, SettingsError

from gateway.make_key import print_key
from gateway.service import Service
from gateway.settings import GatewaySettings, remedy

_log = structlog.get_logger("gateway")


class _Unrepeated(logging.Filter):
    """Lets each message of a library pass once in ten seconds: Kafka's client repeats its own while a broker is
    away, the HTTP server its own for each caller who sends nonsense.
    """

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
    noisy = ("aiokafka", "uvicorn")
    handler.addFilter(lambda record: not record.name.startswith(noisy) or unrepeated.filter(record))
    unrepeated = _Unrepeated()


def main() -> int:
    """Run one gateway; 0 after an orderly stop, 1 after a failure, 2 for settings that cannot be used.

    With `make-key` as its first argument, make an API key instead.
    """
    if sys.argv[1:2] == ["make-key"]:
        return print_key(sys.argv[2:])
    try:
        settings = CliApp.run(GatewaySettings)
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            field = str(fault["loc"][0]) if fault["loc"] else ""
            print(f"gateway: {field}: {fault['msg']}; {remedy(field)}", file=sys.stderr)
        return 2
    except SettingsError as error:  # a value that is no JSON where JSON is wanted
        print(f"gateway: {error}; see --help", file=sys.stderr)
        return 2
    set_up_logs()
    try:
        uvloop.run(Service(settings).run())
    except Exception:  # the last resort of a process: whatever it was, say it in the log and exit with an error
        _log.exception("gateway_failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
