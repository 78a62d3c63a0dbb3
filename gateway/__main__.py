"""`python -m gateway`: settings, logs, event loop, exit code. Knows nothing of what the service does."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

import structlog
import uvloop
from pydantic import ValidationError
from pydantic_settings import CliApp, SettingsError

from gateway.make_key import print_key
from gateway.models import server_version
from gateway.service import Service
from gateway.settings import GatewaySettings, remedy
from gateway.webhook_redelivery import parse_age_s
from gateway.webhook_service import WebhookService, WebhookServiceSettings
from schemas.tracing import is_wanted, set_up

_log = structlog.get_logger("gateway")

_REPEATING = ("aiokafka", "uvicorn", "opentelemetry", "urllib3")


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
    handler.addFilter(lambda record: not record.name.startswith(_REPEATING) or unrepeated.filter(record))
    unrepeated = _Unrepeated()


def main(arguments: Sequence[str]) -> int:
    """Run one gateway, or with `webhooks` as first argument what delivers webhooks.

    0 after an orderly stop, 1 after a failure, 2 for settings that cannot be used. With `make-key` as first argument,
    make an API key instead.
    """
    if list(arguments[:1]) == ["make-key"]:
        return print_key(list(arguments[1:]))
    delivers = list(arguments[:1]) == ["webhooks"]
    kind = WebhookServiceSettings if delivers else GatewaySettings
    try:
        settings = CliApp.run(kind, cli_args=list(arguments[delivers:]))
    except ValidationError as error:
        for fault in error.errors(include_url=False, include_input=False):
            field = str(fault["loc"][0]) if fault["loc"] else ""
            print(f"gateway: {field}: {fault['msg']}; {remedy(field)}", file=sys.stderr)
        return 2
    except SettingsError as error:  # a value that is no JSON where JSON is wanted
        print(f"gateway: {error}; see --help", file=sys.stderr)
        return 2
    set_up_logs()
    stop_tracing = _trace()
    try:
        if isinstance(settings, WebhookServiceSettings):
            return uvloop.run(_run_webhooks(settings))
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


async def _run_webhooks(settings: WebhookServiceSettings) -> int:
    if not (settings.webhook_secrets.get_secret_value() or settings.webhook_tenant_secrets.get_secret_value()):
        print(f"gateway: webhook_secrets: none are set; {remedy('webhook_secrets')}", file=sys.stderr)
        return 2
    service = WebhookService(settings)
    if not settings.redeliver_dead:
        await service.run()
        return 0
    now_s = time.time()
    count = await service.redeliver(
        since_ms=int(1000 * (now_s - parse_age_s(settings.since))),
        until_ms=int(1000 * (now_s - parse_age_s(settings.until))),
    )
    print(f"{count} webhooks will be delivered again")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
