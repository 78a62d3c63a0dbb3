"""The commands `serve` and `announce`: an event loop, signals, and a Worker or a Pool in it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from typing import Any

import structlog
import uvloop

from workers.pool import Pool
from workers.publisher import Publisher
from workers.settings import ServeSettings, WorkerSettings
from workers.worker import Worker

log = structlog.get_logger()

# Python hands the interpreter over between threads every 5 ms by default, as long as a small model runs; a model's
# thread that comes back from its device must not wait so long for the loop, nor the loop for it.
_SWITCH_INTERVAL_S = 0.0005


def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    uvloop.run(_serve(settings))


async def _serve(settings: ServeSettings) -> None:
    worker = Worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    main = asyncio.current_task()
    assert main is not None

    def crash(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("crash", message=context["message"], error=repr(context.get("exception")))
        main.cancel()  # a callback that failed has left a lane half done: better a new process

    loop.set_exception_handler(crash)
    collect_less_often()
    await worker.run()
    if worker.interrupted:  # a thread may be inside a model or a download for minutes yet; none of it is waited for
        logging.shutdown()
        os._exit(0)


def collect_less_often() -> None:
    """Make the cycle collector leave alone what lives for ever, and look at the rest more rarely.

    Requests are trees without cycles; walking them every 700 allocations took an eighth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def announce(settings: WorkerSettings) -> None:
    """Create topics and announce the models, then return."""
    asyncio.run(_announce(settings))


async def _announce(settings: WorkerSettings) -> None:
    pool = Pool(settings)
    await pool.read()
    await pool.provision()
    async with asyncio.TaskGroup() as tasks:
        publisher = Publisher(bootstrap=settings.kafka_bootstrap, tasks=tasks)
        await publisher.open()
        try:
            await pool.announce(publisher)
        finally:
            await publisher.close()
    log.info("announce_models", pool=pool.name, models=sorted(pool.models))
