"""Online: the demo's HTTP client, which asks the gateway for verdicts synchronously and by asynchronous jobs.

Must not know Kafka. This is what a caller in any language would write.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import numpy as np
import numpy.typing as npt

from local.errors import LocalStackError
from local.magika import INPUT_NAME, MODEL_NAME
from local.verdict import Verdict, ask
from schemas.v2 import HEADER_LENGTH, decode_response, encode_request

INFER_PATH = f"/v2/models/{MODEL_NAME}/infer"

_AT_A_TIME = 16  # requests that this client has open; of jobs there may be any number
_POLL_S = 0.1  # the gateway asks for a second, a person at a terminal for less
_TIMEOUT_S = 60.0
_OCTETS = "application/octet-stream"

Row = npt.NDArray[np.int32]
_T = TypeVar("_T")
_R = TypeVar("_R")


class RefusedError(LocalStackError):
    """The gateway answered a request of the demo with an error."""


@dataclass(frozen=True, kw_only=True)
class SyncAnswer:
    """One synchronous answer as it came: its status line's code, its JSON, and how long it took."""

    status: int
    body: dict[str, Any]
    verdict: Verdict
    took_ms: float


def classify_now(url: str, row: Row) -> SyncAnswer:
    """Ask for one verdict in plain JSON and wait for it. Blocks. Raises RefusedError."""
    tensor = {"name": INPUT_NAME, "datatype": "INT32", "shape": [1, row.size], "data": row.tolist()}
    began_s = time.perf_counter()
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:
        response = _accept(client.post(INFER_PATH, json={"inputs": [tensor]}), 200)
    took_ms = 1000 * (time.perf_counter() - began_s)
    verdict = Verdict.of(decode_response(response.content))
    return SyncAnswer(status=response.status_code, body=response.json(), verdict=verdict, took_ms=took_ms)


async def classify_by_jobs(
    url: str, rows: Mapping[str, Row], *, on_accepted: Callable[[str], None], on_done: Callable[[], None]
) -> dict[str, Verdict]:
    """Ask for all verdicts as jobs, then fetch each when it is done. Cancel-safe.

    Args:
        url: of the gateway.
        rows: features by name of file.
        on_accepted: told the path of each job.
        on_done: called as each verdict arrives.

    Raises:
        ExceptionGroup of RefusedError and httpx.HTTPError.
    """
    places = asyncio.Semaphore(_AT_A_TIME)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client:

        async def submit(row: Row) -> str:
            async with places:
                job = await _submit(client, row)
            on_accepted(job)
            return job

        async def fetch(job: str) -> Verdict:
            async with places:
                verdict = await _fetch(client, job)
            on_done()
            return verdict

        jobs = await _each(submit, rows)
        return await _each(fetch, jobs)


async def _each(work: Callable[[_T], Coroutine[Any, Any, _R]], items: Mapping[str, _T]) -> dict[str, _R]:
    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(work(item)) for name, item in items.items()}
    return {name: task.result() for name, task in tasks.items()}


async def _submit(client: httpx.AsyncClient, row: Row) -> str:
    body, header_length = encode_request(ask(row))
    headers = {"prefer": "respond-async", "content-type": _OCTETS, HEADER_LENGTH: str(header_length)}
    response = _accept(await client.post(INFER_PATH, content=body, headers=headers), 202)
    return response.headers["location"]


async def _fetch(client: httpx.AsyncClient, job: str) -> Verdict:
    while True:
        response = await client.get(f"{job}/result", headers={"accept": _OCTETS})
        if response.status_code != 202:
            break
        await asyncio.sleep(_POLL_S)  # a job tells its end only when asked
    _accept(response, 200)
    length = response.headers.get(HEADER_LENGTH)
    return Verdict.of(decode_response(response.content, None if length is None else int(length)))


def _accept(response: httpx.Response, status: int) -> httpx.Response:
    if response.status_code != status:
        raise RefusedError(
            f"{response.request.method} {response.request.url.path} was answered {response.status_code}, not {status}: "
            f"{response.text[:500]}\nThe gateway's log says more."
        )
    return response
