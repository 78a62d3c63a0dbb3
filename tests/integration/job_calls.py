"""How tests use the job API: submitting, and ending a job as a worker would."""

from __future__ import annotations

import time

import httpx

from schemas.outcome import JobState, Outcome, encode_stored, outcome_key
from schemas.progress import Progress
from schemas.response import InferenceResponse
from schemas.tensor import Tensor
from schemas.v2 import encode_response
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker, Taken
from tests.integration.gateway_calls import BODY, path
from tests.integration.gateway_process import GatewayProcess

ASYNC = {"prefer": "respond-async"}


async def submitted(http: httpx.AsyncClient, worker: EchoWorker, **headers: str) -> tuple[str, Taken]:
    """A job's path, and what the worker has of it."""
    accepted = await http.post(path(worker), json=BODY, headers=ASYNC | headers)
    assert accepted.status_code == 202, accepted.text
    return accepted.headers["location"], await worker.take()


def store_outcome(gateway: GatewayProcess, outcome: Outcome) -> bool:
    """Store it as a worker does; whether it was the first."""
    store = open_store(str(gateway.store))
    return store.put(outcome_key(outcome.origin, EPOCH), encode_stored(outcome), if_absent=True)


def answer(taken: Taken, tensors: tuple[Tensor, ...]) -> Outcome:
    """A successful end with these outputs."""
    now_ms = time.time_ns() // 1_000_000
    value, length = encode_response(InferenceResponse("m", "1", tensors))
    return Outcome(taken.envelope.id, JobState.SUCCEEDED, taken.origin, value, length, taken.created_ms, now_ms, now_ms)


async def done(worker: EchoWorker, taken: Taken) -> None:
    """The worker acknowledges the request."""
    offset = taken.origin.offset
    await worker.commit(taken.origin.partition, Progress(0, offset + 1, ((offset, offset + 1),)))
