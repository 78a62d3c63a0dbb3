"""How the tests of webhooks submit and end jobs, and the settings that their processes share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec

from schemas.errors import InferenceError
from schemas.outcome import Outcome, encode_stored, outcome_headers, outcome_key
from store import open_store
from tests.integration.echo_worker import EPOCH, EchoWorker
from tests.integration.gateway_calls import BODY, path
from tests.integration.gateway_process import GatewayProcess

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
OTHER_SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
SETTINGS: dict[str, Any] = {
    "webhook_secrets": SECRET,
    "webhook_allow_networks": "127.0.0.0/8",
    "webhook_allow_http": "true",
    "webhook_retry_s": "0.3 0.3 0.3 0.3 0.3 0.3 0.3 0.3 0.3 0.3 0.3 0.3",
    "webhook_timeout_s": "5",
    "status_cache_ms": 0,
}


class WebhookProcess(GatewayProcess):
    """`python -m gateway webhooks`."""

    arguments: tuple[str, ...] = ("webhooks",)
    speaks_grpc = False

    def joined(self) -> WebhookProcess:
        """Wait until it is a member of the group."""
        self.logged("join_group")
        return self

    def count(self) -> int:
        """Run it to its end as a command; the number that it prints first."""
        command = [sys.executable, "-m", "gateway", *self.arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        print(done.stderr)  # pytest shows it with a failure
        return int(done.stdout.split()[0])


def deliverer(bootstrap: str, gateway: GatewayProcess, **settings: Any) -> WebhookProcess:
    """A process that delivers for the installation of a gateway."""
    return WebhookProcess(bootstrap=bootstrap, prefix=gateway.prefix, store=gateway.store, **(SETTINGS | settings))


async def submit(http: httpx.AsyncClient, worker: EchoWorker, url: str) -> str:
    """Submit a job with a webhook; its path."""
    accepted = await http.post(path(worker), json=BODY, headers={"prefer": "respond-async", "tidegate-webhook": url})
    assert accepted.status_code == 202, accepted.text
    location: str = accepted.headers["location"]
    return location


async def finish(
    worker: EchoWorker, store: Path, *, error: InferenceError | None = None, partition: int = 0
) -> Outcome:
    """End the next request as workers do: outcome into the store, then onto the results topic."""
    taken = await worker.take()
    outcome = worker.outcome(taken, error=error)
    key = outcome_key(outcome.origin, EPOCH)
    await asyncio.to_thread(open_store(str(store)).put, key, encode_stored(outcome), if_absent=True)
    await publish(worker, outcome, partition=partition)
    return outcome


async def publish(worker: EchoWorker, outcome: Outcome, *, partition: int = 0) -> None:
    """Write the result record of an outcome."""
    topic, headers = worker.topics.results(worker.model), outcome_headers(outcome, b"/echo")
    await worker.producer.send_and_wait(topic, outcome.value, partition=partition, headers=headers)


async def ended(
    http: httpx.AsyncClient, worker: EchoWorker, gateway: GatewayProcess, url: str, **how: Any
) -> tuple[str, Outcome]:
    """Submit a job with a webhook and end it."""
    job = await submit(http, worker, url)
    return job, await finish(worker, gateway.store, **how)


async def stands(http: httpx.AsyncClient, job: str, state: str, **fields: Any) -> dict[str, Any]:
    """Ask until a job's webhook is in this state, with these fields; it is written after the receiver has answered."""
    async with asyncio.timeout(30):
        while True:
            document: dict[str, Any] = (await http.get(f"{job}/webhook")).json()
            if document["state"] == state and fields.items() <= document.items():
                return document
            await asyncio.sleep(0.05)


def verified(secret: str, received: Any) -> dict[str, Any]:
    """The message, judged by the standard's own library."""
    from standardwebhooks import Webhook

    message: dict[str, Any] = Webhook(secret).verify(received.body, received.headers)
    assert msgspec.json.decode(received.body) == message
    return message
