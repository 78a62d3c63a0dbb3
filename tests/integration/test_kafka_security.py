"""Gateway, workers and commands speak to a broker that wants TLS, certificates and passwords; a wrong one is told."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kafka.admin import KafkaAdminClient, ScramMechanism, UserScramCredentialUpsertion

from local.kafka import LocalKafka
from tests.integration.certificates import Authority
from tests.integration.gateway_process import GatewayProcess
from tests.integration.worker_process import Installation

pytestmark = pytest.mark.kafka

USER, PASSWORD = "tidegate", "the-password-of-kafka"
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]}
_MODULE = "org.apache.kafka.common.security"
_PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},{listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MUTUAL:SSL,SCRAM:SASL_SSL,PLAIN:SASL_PLAINTEXT,TOKEN:SASL_PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.mutual.ssl.client.auth=required
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.token.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.token.oauthbearer.sasl.jaas.config={module}.oauthbearer.OAuthBearerLoginModule required \
unsecuredLoginStringClaim_sub="broker";
"""


class SecuredKafka:
    """A broker with one listener for each way to prove oneself, and settings for each of them."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        certificate, key = authority.sign("broker")
        keystore = directory / "keystore.pem"
        keystore.write_bytes(key.read_bytes() + certificate.read_bytes())
        ports = random.sample(range(20_000, 32_000), 4)  # below those of outgoing connections
        self.bootstraps = {
            name: f"127.0.0.1:{port}" for name, port in zip(("MUTUAL", "SCRAM", "PLAIN", "TOKEN"), ports, strict=True)
        }
        properties = _PROPERTIES.format(
            listeners=",".join(f"{name}://{address}" for name, address in self.bootstraps.items()),
            keystore=keystore,
            truststore=authority.ca,
            module=_MODULE,
            user=USER,
            password=PASSWORD,
        )
        self.broker = LocalKafka(more_properties=properties)
        client, client_key = authority.sign("client", password="of-the-key")
        token = directory / "token"
        token.write_text(unsecured_token())
        ca = {"kafka_ca": authority.ca}
        login = {"kafka_username": USER, "kafka_password": PASSWORD}
        self.settings: dict[str, dict[str, Any]] = {
            "MUTUAL": {
                **ca,
                "kafka_security_protocol": "SSL",
                "kafka_certificate": client,
                "kafka_key": client_key,
                "kafka_key_password": "of-the-key",
            },
            "SCRAM": {
                **ca,
                **login,
                "kafka_security_protocol": "SASL_SSL",
                "kafka_sasl_mechanism": "SCRAM-SHA-512",
            },
            "PLAIN": {**login, "kafka_security_protocol": "SASL_PLAINTEXT", "kafka_sasl_mechanism": "PLAIN"},
            "TOKEN": {
                "kafka_security_protocol": "SASL_PLAINTEXT",
                "kafka_sasl_mechanism": "OAUTHBEARER",
                "kafka_token_file": token,
            },
        }

    def start(self) -> None:
        """Start it, and give the user of SCRAM a password."""
        self.broker.start()
        admin = KafkaAdminClient(bootstrap_servers=self.broker.bootstrap)
        upsertion = UserScramCredentialUpsertion(USER, ScramMechanism.SCRAM_SHA_512, PASSWORD, iterations=4096)
        assert admin.alter_user_scram_credentials([upsertion]) == {USER: None}
        admin.close()


def unsecured_token() -> str:
    """What a broker without an issuer of tokens takes, for tests."""

    def part(document: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()

    now_s = int(time.time())
    return f"{part({'alg': 'none'})}.{part({'sub': USER, 'iat': now_s, 'exp': now_s + 3600})}."


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    kafka = SecuredKafka(tmp_path_factory.mktemp("secured"))
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.broker.close()


@pytest.mark.parametrize("listener", ["SCRAM", "MUTUAL", "PLAIN", "TOKEN"])
async def test_a_request_is_served(secured: SecuredKafka, listener: str, prefix: str, tmp_path: Path) -> None:
    settings = secured.settings[listener]
    site = Installation(secured.bootstraps[listener], prefix, tmp_path)
    site.add_device("m")
    gateway = GatewayProcess(bootstrap=site.bootstrap, prefix=prefix, store=site.store, **settings)
    with gateway:
        async with site.worker(**settings) as worker, gateway.client() as client:
            await worker.ready()
            await asyncio.to_thread(gateway.logged, "learn_model", model="m")
            await asyncio.to_thread(gateway.ready)
            answer = await client.post("/v2/models/m/infer", json=BODY)
            assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [1.0, 2.0])
            detached = await client.post("/v2/models/m/infer", json=BODY, headers={"prefer": "respond-async"})
            assert detached.status_code == 202
            await _result(client, detached.json()["links"]["result"])
            assert PASSWORD not in "\n".join(worker.lines)


async def _result(client: httpx.AsyncClient, path: str) -> None:
    async with asyncio.timeout(20):
        while (await client.get(path)).status_code != 200:  # noqa: ASYNC110  # only asking again tells
            await asyncio.sleep(0.05)


def _run(site: Installation, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers", *arguments],
        env={**os.environ, **site.environment(**settings)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("listener", ["SCRAM", "TOKEN"])
def test_the_commands_of_workers_log_in_too(secured: SecuredKafka, listener: str, prefix: str, tmp_path: Path) -> None:
    settings = secured.settings[listener]
    site = Installation(secured.bootstraps[listener], prefix, tmp_path)
    site.add_device("m")
    announced = _run(site, "announce", **settings)
    assert announced.returncode == 0, announced.stderr
    scored = _run(site, "score", "--model", "m", "--from", f"{prefix}.infer.m", "--to", f"{prefix}.scored", **settings)
    assert scored.returncode == 0, scored.stderr
    replayed = _run(site, "replay", "--dry-run", **settings)
    assert replayed.returncode == 0, replayed.stderr


@pytest.mark.parametrize(
    ("listener", "change"),
    [
        ("SCRAM", {"kafka_password": "another-secret"}),
        ("PLAIN", {"kafka_password": "another-secret"}),
        ("SCRAM", {"kafka_ca": ""}),  # signed by nobody that the system knows
    ],
)
async def test_who_is_not_let_in_says_so_and_tells_no_secret(
    secured: SecuredKafka, listener: str, change: dict[str, Any], prefix: str, tmp_path: Path
) -> None:
    settings = secured.settings[listener] | change
    site = Installation(secured.bootstraps[listener], prefix, tmp_path)
    gateway = GatewayProcess(bootstrap=site.bootstrap, prefix=prefix, store=site.store, **settings)
    with gateway:
        line = await asyncio.to_thread(gateway.logged, "kafka_unreachable")
        assert line["error"]
        async with gateway.client() as client:
            assert (await client.get("/v2/health/ready")).status_code == 503
        assert "another-secret" not in json.dumps(gateway._lines)


def test_a_certificate_that_is_not_there_ends_both_with_an_error_that_names_it(prefix: str, tmp_path: Path) -> None:
    site = Installation("127.0.0.1:1", prefix, tmp_path)
    settings = {"kafka_security_protocol": "SSL", "kafka_ca": tmp_path / "none.pem"}
    site.add_device("m")
    announced = _run(site, "announce", **settings)
    assert announced.returncode != 0
    assert "none.pem" in announced.stderr
