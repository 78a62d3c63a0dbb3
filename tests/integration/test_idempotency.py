"""Idempotency keys over HTTP: one job per key, whoever asks and whichever gateway dies meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import msgspec
import pytest

from gateway.idempotency_key import KeyClaim, fingerprint, repeat_of
from gateway.key_claims import LEASE_MS
from local.kafka import LocalKafka
from schemas.outcome import encode_stored, outcome_key
from schemas.progress import Progress
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker, Taken
from tests.integration.gateway_calls import BODY, ROW, path, records_in, worker_of
from tests.integration.gateway_process import GatewayProcess

pytest_plugins = ["tests.integration.gateway_fixtures"]
pytestmark = pytest.mark.kafka

CONTENT = msgspec.json.encode(BODY)


def keyed(key: str, **headers: str) -> dict[str, str]:
    return {"idempotency-key": key, "content-type": "application/json"} | headers


async def post(http: httpx.AsyncClient, worker: EchoWorker, key: str, **headers: str) -> httpx.Response:
    return await http.post(path(worker), content=CONTENT, headers=keyed(key, **headers))


async def ended(worker: EchoWorker, gateway: GatewayProcess, taken: Taken) -> None:
    """The worker stores the outcome, as it is asked to, and acknowledges."""
    assert taken.envelope.stored
    key = outcome_key(taken.origin, EPOCH)
    open_store(str(gateway.store)).put(key, encode_stored(worker.outcome(taken)), if_absent=True)
    offset = taken.origin.offset
    await worker.commit(taken.origin.partition, Progress(0, offset + 1, ((offset, offset + 1),)))


async def test_the_same_key_is_the_same_job(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    first = await post(http, worker, "a", prefer="respond-async")
    again = await post(http, worker, "a", prefer="respond-async")
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    await ended(worker, gateway, await worker.take())
    finished = await post(http, worker, "a", prefer="respond-async")
    assert (finished.json()["id"], finished.json()["state"]) == (first.json()["id"], "succeeded")
    attached = await post(http, worker, "a")  # without respond-async: its answer
    assert attached.json()["outputs"][0]["data"] == ROW
    assert await records_in(worker) == 1
    other = await post(http, worker, "b", prefer="respond-async")
    assert other.json()["id"] != first.json()["id"]


async def test_a_synchronous_repeat_gets_the_first_ones_answer_or_its_job(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    first = asyncio.ensure_future(post(http, worker, "s"))
    taken = await worker.take()
    assert taken.envelope.reply_to is not None
    repeat = asyncio.ensure_future(post(http, worker, "s"))
    spent = await post(http, worker, "s", prefer="wait=0")
    assert spent.status_code == 202
    await ended(worker, gateway, taken)
    await worker.reply(taken)
    assert (await first).json() == (await repeat).json()
    assert (await http.get(f"{spent.headers['location']}/result")).json()["outputs"][0]["data"] == ROW
    assert await records_in(worker) == 1


async def test_another_body_under_the_same_key_is_refused(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    await post(http, worker, "m", prefer="respond-async")
    other = msgspec.json.encode(BODY | {"id": "another"})
    response = await http.post(path(worker), content=other, headers=keyed("m", prefer="respond-async"))
    assert (response.status_code, response.json()["code"]) == (422, "idempotency_mismatch")
    version = await http.post(f"/v2/models/{worker.model}/versions/1/infer", content=CONTENT, headers=keyed("m"))
    assert version.status_code == 422
    assert (await post(http, worker, "x" * 256)).status_code == 400
    assert await records_in(worker) == 1


async def test_requests_that_are_refused_leave_their_key_free(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    refused = await http.post(path(worker), content=b"{}", headers=keyed("f", prefer="respond-async"))
    assert refused.status_code == 400
    assert (await post(http, worker, "f", prefer="respond-async")).status_code == 202


async def test_many_at_once_through_two_gateways_run_once(
    kafka: LocalKafka, gateway: GatewayProcess, http: httpx.AsyncClient
) -> None:
    with GatewayProcess(bootstrap=kafka.bootstrap, prefix=gateway.prefix, store=gateway.store) as second:
        second.ready()
        async with worker_of(kafka.bootstrap, gateway, second) as worker, second.client() as other:
            calls = [post(client, worker, "c", prefer="respond-async") for client in (http, other) for _ in range(5)]
            answers = await asyncio.gather(*calls)
            assert {answer.status_code for answer in answers} == {202}
            assert len({answer.json()["id"] for answer in answers}) == 1
            assert await records_in(worker) == 1


async def test_a_batch_has_one_answer_per_key(http: httpx.AsyncClient, worker: EchoWorker) -> None:
    bad = {"inputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": ROW}]}
    content = msgspec.json.encode({"requests": [BODY, bad, BODY]})
    url = f"/v1/models/{worker.model}/jobs"
    first, again = [await http.post(url, content=content, headers=keyed("batch")) for _ in range(2)]
    assert first.status_code == again.status_code == 202
    assert [each.get("id") for each in first.json()["jobs"]] == [each.get("id") for each in again.json()["jobs"]]
    assert again.json()["jobs"][1]["code"] == "invalid_request"
    assert await records_in(worker) == 2
    other = await http.post(url, content=msgspec.json.encode({"requests": [BODY]}), headers=keyed("batch"))
    assert other.status_code == 422


# --- a gateway that died: its claim of the key is there, and no answer


def dead_claim(gateway: GatewayProcess, key: str, named: str, *, age_ms: int = LEASE_MS + 1000) -> KeyClaim:
    claim = KeyClaim(named, "dead-1", time.time_ns() // 1_000_000 - age_ms)
    place = repeat_of({b"idempotency-key": key.encode()}, "", named).place
    assert open_store(str(gateway.store)).put(f"{place}/0000/claim", msgspec.json.encode(claim), if_absent=True)
    return claim


async def test_while_the_first_may_still_be_taken_a_repeat_is_a_conflict(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    dead_claim(gateway, "young", fingerprint("infer", worker.model, CONTENT), age_ms=1000)
    response = await post(http, worker, "young", prefer="respond-async")
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert response.headers["retry-after"] == "2"


async def test_a_gateway_that_died_before_it_produced_holds_up_nobody(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    dead_claim(gateway, "dead", fingerprint("infer", worker.model, CONTENT))
    first = await post(http, worker, "dead", prefer="respond-async")
    assert first.status_code == 202
    assert (await post(http, worker, "dead", prefer="respond-async")).json()["id"] == first.json()["id"]
    assert await records_in(worker) == 1


async def test_what_a_dead_gateway_produced_is_found_and_not_produced_again(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    await http.post(path(worker), content=CONTENT, headers={"prefer": "respond-async"})  # somebody else's
    dead_claim(gateway, "found", fingerprint("infer", worker.model, CONTENT))
    other = await worker.take()
    headers = [("ce_id", b"dead-1"), ("tidegate-stored", b"1"), *_content_headers(other)]
    await worker.producer.send_and_wait(worker.topic, other.value, headers=headers)
    adopted = await post(http, worker, "found", prefer="respond-async")
    assert adopted.status_code == 202
    taken = await worker.take()
    assert taken.envelope.id == "dead-1"
    await ended(worker, gateway, taken)
    result = await http.get(f"{adopted.headers['location']}/result", params={"wait": 20})
    assert result.json()["outputs"][0]["data"] == ROW
    assert await records_in(worker) == 2
    assert (await post(http, worker, "found")).json()["outputs"][0]["data"] == ROW


async def test_of_a_batch_that_died_half_way_only_the_rest_is_produced(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    content = msgspec.json.encode({"requests": [BODY, BODY, BODY]})
    dead_claim(gateway, "half", fingerprint("batch", worker.model, content))
    await http.post(path(worker), content=CONTENT, headers={"prefer": "respond-async"})
    other = await worker.take()
    headers = [("ce_id", b"dead-1.1"), ("tidegate-stored", b"1"), *_content_headers(other)]
    await worker.producer.send_and_wait(worker.topic, other.value, headers=headers)
    response = await http.post(f"/v1/models/{worker.model}/jobs", content=content, headers=keyed("half"))
    jobs = response.json()["jobs"]
    assert [each["state"] for each in jobs] == ["queued"] * 3
    assert await records_in(worker) == 4
    ids = {(await worker.take()).envelope.id for _ in range(3)}
    assert "dead-1.1" in ids
    assert {each.rpartition(".")[2] for each in ids} == {"0", "1", "2"}


def _content_headers(taken: Taken) -> list[tuple[str, bytes]]:
    assert taken.header_length is not None
    return [("inference-header-content-length", b"%d" % taken.header_length)]


async def test_the_key_is_answered_before_its_caller_is(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess
) -> None:
    accepted = await post(http, worker, "told", prefer="respond-async")
    place = repeat_of({b"idempotency-key": b"told"}, "", "").place
    answers: list[dict[str, Any]] = msgspec.json.decode(open_store(str(gateway.store)).get(f"{place}/0000/answers"))
    assert [each["job_id"] for each in answers] == [accepted.json()["id"]]
