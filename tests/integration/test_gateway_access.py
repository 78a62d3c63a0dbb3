"""Access end to end: keys, tokens, tenants, the management port and its audit, limits, TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer

from local.kafka import LocalKafka
from schemas.progress import Progress
from tests.integration.access_keys import Issuer, Keys
from tests.integration.certificates import Authority
from tests.integration.echo_worker import EchoWorker
from tests.integration.gateway_calls import BODY, answered, path, worker_of
from tests.integration.gateway_process import JOB_KEY, GatewayProcess

pytestmark = pytest.mark.kafka

ASYNC = {"prefer": "respond-async"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture(scope="module")
def gateway(
    kafka: LocalKafka, keys: Keys, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    process = GatewayProcess(
        bootstrap=kafka.bootstrap,
        prefix="taccess",
        store=tmp_path_factory.mktemp("store"),
        status_cache_ms=0,
        management_port=0,
        api_keys_file=keys.file,
        jwt_jwks=issuer.url,
        jwt_issuer="i",
        jwt_audience="a",
        jwt_refresh_s=0.1,
        max_in_flight_bytes=2_000_000,
        max_body_bytes=3_000_000,
        tenant_limits='{"slow": {"rate_rps": 0.2, "burst": 1}, "narrow": {"in_flight": 1}, "brief": {"backlog": 2}}',
        model_limits='{"full": {"backlog": 1}}',
    )
    with process:
        yield process.ready()
        log = json.dumps(process._lines)
        assert [key for key in keys.all() if key in log] == []
        assert JOB_KEY not in log
        assert "eyJ" not in log  # how each token begins


@pytest_asyncio.fixture
async def http(gateway: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


@pytest_asyncio.fixture
async def worker(kafka: LocalKafka, gateway: GatewayProcess) -> AsyncIterator[EchoWorker]:
    async with worker_of(kafka.bootstrap, gateway) as echo:
        yield echo


async def test_who_may_is_served_and_the_record_names_the_tenant(
    http: httpx.AsyncClient, worker: EchoWorker, keys: Keys
) -> None:
    response, taken = await answered(worker, http.post(path(worker), json=BODY, headers=keys.acme))
    assert response.status_code == 200
    assert taken.envelope.tenant == "acme"


async def test_who_may_not_is_told_before_anything_happens(
    http: httpx.AsyncClient, worker: EchoWorker, keys: Keys
) -> None:
    nobody = await http.post(path(worker), json=BODY)
    assert (nobody.status_code, nobody.headers["www-authenticate"]) == (401, 'Bearer realm="tidegate"')
    wrong = await http.post(path(worker), json=BODY, headers={"authorization": "Bearer tgk_wrong"})
    assert wrong.status_code == 401
    denied = await http.post(path(worker), json=BODY, headers=keys.reader)
    assert (denied.status_code, denied.json()["code"]) == (403, "permission_denied")
    assert f"infer:{worker.model}" in denied.json()["remedy"]
    unknown = await http.post("/v2/models/unknown/infer", json=BODY, headers=keys.reader)
    assert unknown.status_code == 403  # whether it exists is not theirs to know
    assert (await http.get("/v2/health/ready")).status_code == 200
    assert (await http.get("/metrics")).status_code == 200
    assert (await http.get("/v2")).status_code == 401


async def test_listings_show_what_the_caller_may_read(http: httpx.AsyncClient, worker: EchoWorker, keys: Keys) -> None:
    async def listed(headers: dict[str, str]) -> tuple[set[str], set[str]]:
        index = (await http.post("/v2/repository/index", headers=headers)).json()
        stats = (await http.get("/v2/models/stats", headers=headers)).json()["model_stats"]
        return {each["name"] for each in index}, {each["name"] for each in stats}

    assert all(worker.model in names for names in await listed(keys.acme))
    assert await listed(keys.reader) == (set(), set())
    assert (await http.get(f"/v2/models/{worker.model}", headers=keys.reader)).status_code == 403


async def test_tenants_do_not_see_each_others_jobs(
    http: httpx.AsyncClient, worker: EchoWorker, keys: Keys, issuer: Issuer
) -> None:
    job = (await http.post(path(worker), json=BODY, headers=keys.acme | ASYNC)).json()
    for name, link in job["links"].items():
        if name != "events":  # they go on until the job has ended
            assert (await http.get(link, headers=keys.acme)).status_code in (200, 202)
        hidden = await http.get(link, headers=keys.rival)
        assert (hidden.status_code, hidden.json()["code"]) == (404, "job_not_found")
        made_up = await http.get(link.replace(job["id"], "A" + job["id"][1:]), headers=keys.rival)
        assert made_up.json()["detail"] == hidden.json()["detail"]  # nothing tells the two apart
        assert (await http.get(link)).status_code == 401
    # A tenant is one, whatever proves it.
    token = {"authorization": f"Bearer {issuer.token('k1', tenant='acme')}"}
    assert (await http.get(job["links"]["self"], headers=token)).status_code == 200
    elsewhere = {"authorization": f"Bearer {issuer.token('k1', tenant='acme', scope='jobs:other')}"}
    assert (await http.get(job["links"]["self"], headers=elsewhere)).status_code == 403
    operator = await http.get(job["links"]["self"], headers=keys.operator)
    assert operator.status_code == 403


async def test_a_rotated_key_is_followed(
    http: httpx.AsyncClient, worker: EchoWorker, issuer: Issuer, gateway: GatewayProcess
) -> None:
    def sent(kid: str) -> dict[str, str]:
        return {"authorization": f"Bearer {issuer.token(kid, tenant='acme')}"}

    serving = asyncio.ensure_future(worker.serve())
    old = sent("k1")
    assert (await http.post(path(worker), json=BODY, headers=old)).status_code == 200
    issuer.rotate()
    await asyncio.sleep(0.15)  # the key set is asked for at most every 0.1 s here
    assert (await http.post(path(worker), json=BODY, headers=sent("k2"))).status_code == 200
    assert (await http.post(path(worker), json=BODY, headers=old)).status_code == 401  # remembered or not
    await asyncio.to_thread(gateway.logged, "read_key_set", keys=["k2"])
    serving.cancel()


async def test_managing_needs_its_port_and_scope_and_leaves_a_record(
    http: httpx.AsyncClient, worker: EchoWorker, keys: Keys, gateway: GatewayProcess
) -> None:
    load = f"/v2/repository/models/{worker.model}/load"
    assert (await http.post(load, headers=keys.operator)).status_code in (404, 405)
    async with gateway.management_client() as management:
        assert (await management.post(load)).status_code == 401
        assert (await management.post(load, headers=keys.acme)).status_code == 403
        assert (await management.get("/v2/models", headers=keys.operator)).status_code == 404
        done = await management.post(load, headers=keys.operator)
        assert done.status_code == 200
        missing = await management.post("/v2/repository/models/none/load", headers=keys.operator)
        assert missing.status_code == 404
    refused = await asyncio.to_thread(gateway.logged, "audit", outcome="refused", operation=f"POST {load}")
    assert refused["origin"].startswith("127.0.0.1:")
    records = await audit_records(worker.bootstrap, "taccess.audit", count=4)
    assert [(each["target"], each["outcome"]) for each in records] == [
        (worker.model, "tried"),
        (worker.model, "done"),
        ("none", "tried"),
        ("none", "refused"),
    ]
    first, second, *_ = records
    assert first["id"] == second["id"]
    assert (first["caller"], first["operation"]) == ("operator", "load")
    assert first["origin"].startswith("127.0.0.1:")
    assert first["at"]
    await asyncio.to_thread(gateway.logged, "audit", id=first["id"], outcome="done", caller="operator")


async def audit_records(bootstrap: str, topic: str, *, count: int) -> list[dict[str, Any]]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        async with asyncio.timeout(20):
            return [json.loads((await consumer.getone()).value) for _ in range(count)]
    finally:
        await consumer.stop()


async def test_a_tenant_above_its_rate_is_told_when_to_come_again(
    http: httpx.AsyncClient, worker: EchoWorker, issuer: Issuer
) -> None:
    kid = max(issuer.served)
    slow = {"authorization": f"Bearer {issuer.token(kid, tenant='slow')}", **ASYNC}
    assert (await http.post(path(worker), json=BODY, headers=slow)).status_code == 202
    late = await http.post(path(worker), json=BODY, headers=slow)
    assert (late.status_code, late.json()["code"], late.headers["retry-after"]) == (429, "overloaded", "5")
    assert "'slow'" in late.json()["detail"]


async def test_a_tenant_has_so_many_in_flight(http: httpx.AsyncClient, worker: EchoWorker, issuer: Issuer) -> None:
    kid = max(issuer.served)
    narrow = {"authorization": f"Bearer {issuer.token(kid, tenant='narrow')}"}
    first = asyncio.ensure_future(http.post(path(worker), json=BODY, headers=narrow))
    taken = await worker.take()
    refused = await http.post(path(worker), json=BODY, headers=narrow)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    await worker.reply(taken)
    assert (await first).status_code == 200


async def other_than(status: int, ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Ask until the answer is another one."""
    async with asyncio.timeout(20):
        while (answer := await ask()).status_code == status:  # noqa: ASYNC110  # only asking again tells
            await asyncio.sleep(0.05)
    return answer


async def test_a_full_queue_is_429(kafka: LocalKafka, gateway: GatewayProcess, keys: Keys) -> None:
    async with EchoWorker(bootstrap=kafka.bootstrap, prefix="taccess", model="full") as echo, gateway.client() as http:
        await echo.announce()
        await asyncio.to_thread(gateway.logged, "learn_model", model="full")
        # The queue is read beside the requests, once somebody has asked.
        answer = await other_than(202, lambda: http.post(path(echo), json=BODY, headers=keys.acme | ASYNC))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")  # how fast it goes is not known
        assert "requests wait for model 'full'" in answer.json()["detail"]


async def test_a_tenant_has_so_many_queued(http: httpx.AsyncClient, worker: EchoWorker, issuer: Issuer) -> None:
    kid = max(issuer.served)
    brief = {"authorization": f"Bearer {issuer.token(kid, tenant='brief')}", **ASYNC}

    async def submit() -> httpx.Response:
        return await http.post(path(worker), json=BODY, headers=brief)

    for _ in range(3):  # who waits for the answer has no job, whatever the pool has committed
        response, _taken = await answered(worker, http.post(path(worker), json=BODY, headers={**brief, "prefer": ""}))
        assert response.status_code == 200
    assert [(await submit()).status_code for _ in range(3)] == [202, 202, 429]
    refused = await submit()
    assert "2 jobs of tenant 'brief' wait or run, of 2" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    taken = await worker.take()
    await worker.commit(taken.origin.partition, Progress(taken.origin.offset + 1, taken.origin.offset + 1))
    assert (await other_than(429, submit)).status_code == 202
    assert (await submit()).status_code == 429


async def test_bodies_are_bounded_together(gateway: GatewayProcess, worker: EchoWorker, keys: Keys) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    head = [f"POST {path(worker)} HTTP/1.1", f"x-api-key: {keys.acme['x-api-key']}", "content-length: 1500000"]
    writer.write("\r\n".join([*head, "expect: 100-continue", "", ""]).encode())
    assert b" 100 " in await reader.readuntil(b"\r\n\r\n")  # from here on so many bytes are promised to it
    async with gateway.client() as http:

        async def send(size: int) -> httpx.Response:
            return await http.post(path(worker), content=b"x" * size, headers=keys.acme)

        second, large = await send(600_000), await send(2_500_000)
        assert (second.status_code, second.json()["code"]) == (429, "overloaded")
        assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")
        assert (await send(400_000)).status_code == 400  # it is no request, but it was read
        writer.close()
        # That the first caller has left is noticed in a moment.
        assert (await other_than(429, lambda: send(600_000))).status_code == 400


async def test_without_keys_a_web_page_may_not_manage(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    process = GatewayProcess(bootstrap=kafka.bootstrap, prefix=prefix, store=tmp_path, management_port=0)
    with process:
        process.ready()
        async with process.management_client() as management:
            for headers, status in (({}, 404), ({"origin": "https://evil.example"}, 403)):
                answer = await management.post("/v2/repository/models/m/load", headers=headers)
                assert answer.status_code == status


async def test_https_on_both_ports(kafka: LocalKafka, prefix: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("gateway")
    process = GatewayProcess(
        bootstrap=kafka.bootstrap,
        prefix=prefix,
        store=tmp_path,
        management_port=0,
        tls_certificate=certificate,
        tls_key=key,
    )
    trusted = ssl.create_default_context(cafile=authority.ca)
    with process:
        for event in ("listen", "listen_management"):
            port = process.logged(event)["port"]
            async with httpx.AsyncClient(verify=trusted, base_url=f"https://127.0.0.1:{port}") as client:
                assert (await client.get("/v2/health/live")).status_code in (200, 404)
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                    await client.get("/v2/health/live")
