"""The commands `serve` and `announce`: an event loop, signals, and a Worker or a Pool in it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import structlog
import uvloop

from workers.interpreter import tune_interpreter
from workers.pool import Pool
from workers.publisher import Publisher
from workers.settings import ServeSettings, WorkerSettings
from workers.worker import Worker

log = structlog.get_logger()


def serve(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
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
    tune_interpreter()
    await worker.run()
    if worker.interrupted:  # a thread may be inside a model or a download for minutes yet; none of it is waited for
        logging.shutdown()
        os._exit(0)


def announce(settings: WorkerSettings) -> None:
    """Create topics and announce the models, then return."""
    asyncio.run(_announce(settings))


async def _announce(settings: WorkerSettings) -> None:
    pool = Pool(settings)
    await pool.read()
    await pool.provision()
    async with asyncio.TaskGroup() as tasks:
        publisher = Publisher(kafka=settings.kafka_connection(), tasks=tasks)
        await publisher.open()
        try:
            await pool.announce(publisher)
        finally:
            await publisher.close()
    log.info("announce_models", pool=pool.name, models=sorted(pool.models))
