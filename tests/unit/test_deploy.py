"""deploy/keda/: valid by the schemas of Kubernetes, and in step with the settings, routes and images that it names."""

import re
import tomllib
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from lightkube.models.apps_v1 import Deployment
from lightkube.models.core_v1 import ConfigMap, Service
from pydantic_settings import BaseSettings
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.access import Access
from gateway.access_log import AccessLog
from gateway.app import make_app
from gateway.backlog import Backlog
from gateway.broker import Broker
from gateway.catalogue import Catalogue
from gateway.edge import Edge
from gateway.infer import Infer
from gateway.metrics import Metrics
from gateway.models import Models
from gateway.scaling import Scaling
from gateway.settings import GatewaySettings
from schemas.kafka_connection import KafkaConnection
from schemas.topics import Topics
from tests.manifests import (
    DEPLOY,
    ROOT,
    closed,
    container_of,
    environment_of,
    load_all,
    of_pool,
    one,
    pod_of,
    violations,
)
from workers.health import HealthServer
from workers.settings import ServeSettings

CLOSE_S = 5.0 + 5.0
"""What a side may take after its drain: closing clients is bounded by 5 s, and the process must still end."""

MODELS: dict[str, type[msgspec.Struct]] = {"ConfigMap": ConfigMap, "Deployment": Deployment, "Service": Service}
SETTINGS: dict[str, type[BaseSettings]] = {"gateway": GatewaySettings, "worker": ServeSettings}


@pytest.mark.parametrize("pool", ["default", "vision-2"])
def test_kubernetes_objects_are_valid_by_the_kubernetes_schema(pool: str) -> None:
    objects = [each for each in load_all(pool=pool) if each["kind"] != "ScaledObject"]
    assert [each["kind"] for each in objects] == ["ConfigMap", "Deployment", "Service", "Deployment"]
    for each in objects:
        assert violations(closed(msgspec.json.schema(MODELS[each["kind"]])), each) == []


def _gateway(catalogue: Catalogue) -> ASGIApp:
    """The gateway's application without a connection: nothing of it runs until it is asked."""
    topics, metrics = Topics("tidegate"), Metrics()
    broker = Broker(kafka=KafkaConnection(bootstrap="127.0.0.1:1"), client_id="never-started")
    backlog = Backlog(broker=broker, catalogue=catalogue, topics=topics, cache_ms=0)
    scaling = Scaling(backlog=backlog, catalogue=catalogue, topics=topics, metrics=metrics)
    routes: list[Route] = [*Models(catalogue=catalogue, is_ready=lambda: False).routes(), *scaling.routes()]
    infer = Infer.__new__(Infer)  # of no part here: no inference is asked for
    edge = Edge(
        next_id=lambda: "1",
        access=Access(),
        count=lambda status, seconds: None,
        access_log=AccessLog("none"),
        tracing=None,
    )
    return make_app(infer=infer, routes=routes, metrics=metrics, edge=edge)


async def _status(app: ASGIApp, path: str) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        return (await client.get(path)).status_code


async def test_trigger_asks_a_route_that_the_gateway_has_and_doubt_is_an_error() -> None:
    path = urlsplit(one("ScaledObject", "scaledobject")["spec"]["triggers"][0]["metadata"]["url"]).path
    catalogue = Catalogue()
    assert await _status(_gateway(catalogue), path + "/no/such/route") == 404
    assert await _status(_gateway(catalogue), path) == 503  # not all models are known yet
    catalogue.complete = True
    assert await _status(_gateway(catalogue), path) == 404  # no such pool: KEDA takes 200 alone for an answer


async def test_gateway_answers_its_probes() -> None:
    container, app = container_of("gateway"), _gateway(Catalogue())
    assert await _status(app, container["livenessProbe"]["httpGet"]["path"]) == 200
    assert await _status(app, container["readinessProbe"]["httpGet"]["path"]) == 503  # it is not ready, as told above


def test_worker_answers_its_probes() -> None:
    container = container_of("worker")
    server = HealthServer(host="127.0.0.1", port=0, is_live=lambda: True, is_ready=lambda: False)
    url = f"http://127.0.0.1:{server.open()}"
    try:
        assert httpx.get(url + container["livenessProbe"]["httpGet"]["path"]).status_code == 200
        assert httpx.get(url + container["readinessProbe"]["httpGet"]["path"]).status_code == 503
    finally:
        server.close()


@pytest.mark.parametrize(("side", "variable"), [("gateway", "TIDEGATE_PORT"), ("worker", "TIDEGATE_HEALTH_PORT")])
def test_probes_ask_the_port_that_is_listened_on(side: str, variable: str) -> None:
    container = container_of(side)
    port = container["ports"][0]
    assert str(port["containerPort"]) == environment_of(side)[variable]
    exposed = " ".join(str(each["containerPort"]) for each in container["ports"])
    assert f"EXPOSE {exposed}" in (DEPLOY / "images" / f"{side}.Dockerfile").read_text().splitlines()
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]


def test_service_leads_to_the_gateway_only() -> None:
    spec = one("Service", "gateway")["spec"]
    labels = {side: one("Deployment", side)["spec"]["template"]["metadata"]["labels"] for side in SETTINGS}
    assert spec["selector"].items() <= labels["gateway"].items()
    assert not spec["selector"].items() <= labels["worker"].items()
    ports = {port["name"]: port["containerPort"] for port in container_of("gateway")["ports"]}
    assert {port["targetPort"]: port["port"] for port in spec["ports"]} == ports
    assert ports["grpc"] == GatewaySettings.model_fields["grpc_port"].default


@pytest.mark.parametrize("side", SETTINGS)
def test_variables_are_names_of_settings_and_values_are_accepted(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {name: text for name, text in environment_of(side).items() if name.startswith("TIDEGATE_")}
    assert environment.keys() <= {f"TIDEGATE_{field.upper()}" for field in SETTINGS[side].model_fields}
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert SETTINGS[side]() is not None


def test_job_key_comes_from_a_secret() -> None:
    (key,) = (each for each in container_of("gateway")["env"] if each["name"] == "TIDEGATE_JOB_KEY")
    assert key["valueFrom"].keys() == {"secretKeyRef"}
    reference = key["valueFrom"]["secretKeyRef"]
    assert (
        f"secret generic {reference['name']} --from-literal={reference['key']}=" in (DEPLOY / "README.md").read_text()
    )


@pytest.mark.parametrize("side", SETTINGS)
def test_kubernetes_waits_longer_than_the_drain(side: str) -> None:
    waits = container_of(side).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    drain_s = float(environment_of(side).get("TIDEGATE_DRAIN_S", SETTINGS[side].model_fields["drain_s"].default))
    assert pod_of(side)["terminationGracePeriodSeconds"] >= waits + drain_s + CLOSE_S


@pytest.mark.parametrize("side", SETTINGS)
def test_pods_may_do_no_more_than_they_need(side: str) -> None:
    pod, container = pod_of(side), container_of(side)
    assert pod["securityContext"]["runAsNonRoot"] is True
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}" in (DEPLOY / "images" / f"{side}.Dockerfile").read_text().splitlines()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert container["resources"].keys() == {"requests", "limits"}


def test_what_a_worker_writes_has_a_volume() -> None:
    volumes = {each["name"] for each in pod_of("worker")["volumes"] if "emptyDir" in each}
    mounts = [each["mountPath"] for each in container_of("worker")["volumeMounts"] if each["name"] in volumes]
    for name in ("TIDEGATE_CACHE", "TMPDIR"):
        assert any(PurePosixPath(environment_of("worker")[name]).is_relative_to(mount) for mount in mounts)


def test_keda_alone_sets_the_number_of_workers() -> None:
    assert "replicas" not in one("Deployment", "worker")["spec"]


@pytest.mark.parametrize("side", SETTINGS)
def test_image_is_of_this_version_and_named_as_its_dockerfile_says(side: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    image, _, tag = container_of(side)["image"].partition(":")
    assert tag == version
    assert f"-t {image} ." in (DEPLOY / "images" / f"{side}.Dockerfile").read_text()


def test_another_pool_shares_no_name_with_this_one() -> None:
    for file in ("worker", "scaledobject"):
        text = re.sub(r"^\s*#.*$", "", of_pool((DEPLOY / "keda" / f"{file}.yaml").read_text(), "vision-2"), flags=re.M)
        assert "default" not in text
        assert "vision-2" in text
    assert "'/# pool$/s/default/vision/'" in (DEPLOY / "README.md").read_text()


def test_everything_is_in_one_namespace() -> None:
    assert {each["metadata"]["namespace"] for each in load_all()} == {"tidegate"}
