"""Jobs with their results in S3: large values both ways, and URLs of the store instead of bodies."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from local.kafka import LocalKafka
from schemas.outcome import Outcome, answer_key, encode_stored, outcome_key
from schemas.record import decode_value
from schemas.v2 import HEADER_LENGTH, decode_response
from store import ObjectStore, open_store
from tests.integration.echo_worker import EPOCH, EchoWorker, Taken
from tests.integration.gateway_calls import BODY, ROW, path, worker_of
from tests.integration.gateway_process import GatewayProcess

pytestmark = pytest.mark.kafka

CLAIM_ABOVE_BYTES = 2000
PADDED = BODY | {"parameters": {"padding": "p" * CLAIM_ABOVE_BYTES}}


@pytest.fixture
def bucket(s3_bucket_url: str) -> ObjectStore:
    return open_store(s3_bucket_url)


@pytest.fixture
def gateway(kafka: LocalKafka, bucket: ObjectStore) -> Iterator[GatewayProcess]:
    process = GatewayProcess(
        bootstrap=kafka.bootstrap,
        prefix=f"t{uuid.uuid4().hex[:6]}",
        store=Path("unused"),
        claim_above_bytes=CLAIM_ABOVE_BYTES,
        presign_above_bytes=100,
        status_cache_ms=0,
    )
    process._environment["TIDEGATE_STORE"] = bucket.url  # a Path would fold its two slashes into one
    with process:
        yield process.ready()


@pytest_asyncio.fixture
async def worker(kafka: LocalKafka, gateway: GatewayProcess) -> AsyncIterator[EchoWorker]:
    async with worker_of(kafka.bootstrap, gateway) as echo:
        yield echo


async def test_large_requests_and_results_of_jobs_go_through_s3(
    gateway: GatewayProcess, worker: EchoWorker, bucket: ObjectStore
) -> None:
    async with gateway.client() as http:
        accepted = await http.post(path(worker), json=PADDED, headers={"prefer": "respond-async"})
        result = f"{accepted.headers['location']}/result"
        taken = await worker.take()
        assert (taken.value, bool(taken.envelope.claim)) == (b"", True)
        value = bucket.get(taken.envelope.claim)
        assert decode_value(value, taken.header_length, taken.origin).inputs[0].to_list() == ROW
        whole = Taken(taken.envelope, taken.origin, value, taken.header_length, taken.created_ms)
        outcome = worker.outcome(whole)
        key = answer_key(taken.origin, EPOCH, "run-1")
        bucket.put(key, outcome.value)
        claimed = Outcome(
            outcome.id, outcome.state, outcome.origin, b"", outcome.header_length, 1, 2, outcome.finished_ms, claim=key
        )
        bucket.put(outcome_key(taken.origin, EPOCH), encode_stored(claimed), if_absent=True)

        plain = await http.get(result, headers={"accept": "application/json"})  # not the form it is stored in
        assert (plain.status_code, plain.json()["outputs"][0]["data"]) == (200, ROW)
        raw = {"accept": "application/octet-stream"}
        linked = await http.get(result, headers=raw)
        assert (linked.status_code, linked.content) == (303, b"")
        length = int(linked.headers[HEADER_LENGTH])
        assert (await http.head(result, headers=raw)).status_code == 303
    async with httpx.AsyncClient(trust_env=False) as anyone:
        stored = await anyone.get(linked.headers["location"])
    assert stored.headers["content-type"] == f"application/octet-stream; {HEADER_LENGTH}={length}"
    assert decode_response(stored.content, length).outputs[0].to_list() == ROW


async def test_keys_and_cancelling_work_in_s3_too(
    gateway: GatewayProcess, worker: EchoWorker, bucket: ObjectStore
) -> None:
    headers = {"prefer": "respond-async", "idempotency-key": "k"}
    async with gateway.client() as http:
        first, again = [await http.post(path(worker), json=BODY, headers=headers) for _ in range(2)]
        assert first.json()["id"] == again.json()["id"]
        taken = await worker.take()
        job = first.headers["location"]
        assert (await http.delete(job)).json()["state"] == "cancelled"
        late = encode_stored(worker.outcome(taken))
        assert not bucket.put(outcome_key(taken.origin, EPOCH), late, if_absent=True)
        assert (await http.delete(job)).status_code == 200
        assert (await http.get(f"{job}/result")).status_code == 499
        repeat = await http.post(path(worker), json=BODY, headers=headers)
        assert repeat.json()["state"] == "cancelled"
