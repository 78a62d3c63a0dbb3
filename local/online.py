"""Online: the demo asks the gateway with tidegate's own client, synchronously and by asynchronous jobs.

Must not know Kafka. This is what a caller in Python would write.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import httpx
import numpy as np
import numpy.typing as npt

from local.errors import LocalStackError
from local.magika import INPUT_NAME, MODEL_NAME, OUTPUT_NAME
from local.verdict import Verdict
from tidegate import AsyncClient, AsyncJob, Client, Result, TidegateError

INFER_PATH = f"/v2/models/{MODEL_NAME}/infer"

_AT_A_TIME = 16  # requests that this client has open; of jobs there may be any number
_TIMEOUT_S = 60.0

Row = npt.NDArray[np.int32]
T = TypeVar("T")


class RefusedError(LocalStackError):
    """The gateway answered a request of the demo with an error."""


@dataclass(frozen=True, kw_only=True)
class SyncAnswer:
    """One synchronous answer: what the model said, and how long it took."""

    result: Result
    verdict: Verdict
    took_ms: float


def classify_now(url: str, row: Row) -> SyncAnswer:
    """Ask for one verdict in plain JSON and wait for it. Blocks. Raises RefusedError."""
    began_s = time.perf_counter()
    # A local address needs no proxy, whatever the environment says.
    with httpx.Client(trust_env=False) as http, Client(url, binary=False, http=http) as client:
        try:
            result = client.infer(MODEL_NAME, {INPUT_NAME: row[np.newaxis]}, timeout_s=_TIMEOUT_S)
        except TidegateError as error:
            raise _refused(error) from error
    took_ms = 1000 * (time.perf_counter() - began_s)
    return SyncAnswer(result=result, verdict=_verdict(result), took_ms=took_ms)


async def classify_by_jobs(
    url: str, rows: Mapping[str, Row], *, on_accepted: Callable[[str], None], on_done: Callable[[], None]
) -> dict[str, Verdict]:
    """Submit all rows as jobs, then fetch each one's result as it ends. Cancel-safe.

    Args:
        url: of the gateway.
        rows: features by name of file.
        on_accepted: told the id of each job.
        on_done: called as each verdict arrives.

    Raises:
        ExceptionGroup of RefusedError.
    """
    places = asyncio.Semaphore(_AT_A_TIME)
    names: dict[str, str] = {}
    verdicts: dict[str, Verdict] = {}
    async with httpx.AsyncClient(trust_env=False) as http, AsyncClient(url, http=http) as client:

        async def submit(name: str, row: Row) -> AsyncJob:
            async with places:
                job = await _unless_refused(client.submit(MODEL_NAME, {INPUT_NAME: row[np.newaxis]}))
            names[job.id] = name
            on_accepted(job.id)
            return job

        async def fetch(job: AsyncJob) -> None:
            async with places:
                verdicts[names[job.id]] = _verdict(await _unless_refused(job.result(_TIMEOUT_S)))
            on_done()

        async with asyncio.TaskGroup() as group:
            submitted = [group.create_task(submit(name, row)) for name, row in rows.items()]
        async with asyncio.TaskGroup() as group:
            async for job in client.as_completed([task.result() for task in submitted], _TIMEOUT_S):
                group.create_task(fetch(job))
    return {name: verdicts[name] for name in rows}


async def _unless_refused(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except TidegateError as error:
        raise _refused(error) from error


def _refused(error: TidegateError) -> RefusedError:
    return RefusedError(f"the gateway answered {error.status}, {error}\nThe gateway's log says more.")


def _verdict(result: Result) -> Verdict:
    return Verdict.of(result[OUTPUT_NAME].numpy().ravel(), result.parameters)
