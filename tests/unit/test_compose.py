"""local/compose.yaml: valid, private to the machine, and in step with images, settings and the local broker."""

import json
import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.validators import validator_for
from pydantic_settings import BaseSettings

from local.jars import kafka_version

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "local" / "compose.yaml"
SIDES = {"gateway": "gateway", "worker": "workers"}
"""Service of compose.yaml -> the room that it runs."""

_DEFAULTED = re.compile(r"\$\{\w+:-([^}]*)\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _environment(compose: dict[str, Any], service: str) -> dict[str, str]:
    """The service's environment as a container sees it when the user sets nothing."""
    environment = compose["services"][service]["environment"]
    return {name: _DEFAULTED.sub(r"\1", str(value)) for name, value in environment.items()}


def _dockerfile(compose: dict[str, Any], service: str) -> str:
    build = compose["services"][service]["build"]
    path: Path = COMPOSE.parent / build["context"] / build["dockerfile"]
    return path.read_text()


def _settings(service: str) -> type[BaseSettings]:
    # Imported here: only these tests need the services' settings.
    if service == "gateway":
        from gateway.settings import GatewaySettings

        return GatewaySettings
    from workers.settings import ServeSettings

    return ServeSettings


def test_compose_file_is_valid_by_the_compose_schema(compose: dict[str, Any]) -> None:
    schema = json.loads((resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    errors = [f"{error.json_path}: {error.message}" for error in validator_for(schema)(schema).iter_errors(compose)]
    assert errors == []


def test_every_part_is_there(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"kafka", "s3", "models", "gateway", "worker", "prometheus"}


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_broker_is_the_version_of_the_local_one(compose: dict[str, Any]) -> None:
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{kafka_version()}"


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    images = [service["image"] for service in compose["services"].values() if "image" in service]
    assert all(re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+", image) for image in images)


def test_services_wait_for_services_that_can_be_waited_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, dependency in service.get("depends_on", {}).items():
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
            else:
                assert dependency["condition"] == "service_completed_successfully"
                assert "restart" not in services[name]


def test_mounts_are_declared_volumes_or_exist(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for mount in service.get("volumes", []):
            source = _DEFAULTED.sub(r"\1", mount).split(":")[0]
            assert source in compose["volumes"] or source == "./models" or (COMPOSE.parent / source).exists()


def test_clients_are_told_addresses_that_they_can_reach(compose: dict[str, Any]) -> None:
    advertised = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    assert f"PLAINTEXT://{_environment(compose, 'gateway')['TIDEGATE_KAFKA_BOOTSTRAP']}" in advertised
    (host_port,) = compose["services"]["kafka"]["ports"]
    assert f"HOST://{host_port.rpartition(':')[0]}" in advertised


def test_credentials_are_those_of_the_s3_server(compose: dict[str, Any]) -> None:
    server = compose["services"]["s3"]["environment"]
    for service in ("models", *SIDES):
        client = _environment(compose, service)
        assert client["AWS_ACCESS_KEY_ID"] == server["ROOT_ACCESS_KEY"]
        assert client["AWS_SECRET_ACCESS_KEY"] == server["ROOT_SECRET_KEY"]


def test_buckets_exist_before_they_are_used(compose: dict[str, Any]) -> None:
    (made,) = compose["services"]["s3"]["command"]
    for service, name in (
        ("gateway", "TIDEGATE_STORE"),
        ("worker", "TIDEGATE_STORE"),
        ("worker", "TIDEGATE_REPOSITORY"),
    ):
        bucket = _environment(compose, service)[name].removeprefix("s3://").split("/")[0]
        assert f"/buckets/{bucket}" in made.split()


def test_both_sides_share_what_they_must(compose: dict[str, Any]) -> None:
    gateway, worker = (_environment(compose, side) for side in SIDES)
    for name in ("TIDEGATE_KAFKA_BOOTSTRAP", "TIDEGATE_PREFIX", "TIDEGATE_STORE"):
        assert gateway[name] == worker[name]


def test_prometheus_scrapes_the_ports_that_are_listened_on(compose: dict[str, Any]) -> None:
    jobs = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    by_name = {job["job_name"]: job for job in jobs}
    gateway_port = _environment(compose, "gateway")["TIDEGATE_PORT"]
    assert by_name["gateway"]["static_configs"] == [{"targets": [f"gateway:{gateway_port}"]}]
    (worker,) = by_name["worker"]["dns_sd_configs"]
    assert worker["names"] == ["worker"]
    assert str(worker["port"]) == _environment(compose, "worker")["TIDEGATE_HEALTH_PORT"]


@pytest.mark.parametrize("service", SIDES)
def test_image_runs_its_side_and_not_as_root(compose: dict[str, Any], service: str) -> None:
    lines = _dockerfile(compose, service).splitlines()
    assert f'ENTRYPOINT ["python", "-m", "{SIDES[service]}"]' in lines
    assert "USER 10001" in lines


@pytest.mark.parametrize("service", SIDES)
def test_image_is_built_of_all_packages_with_extras_that_exist(
    compose: dict[str, Any], pyproject: dict[str, Any], service: str
) -> None:
    text = _dockerfile(compose, service)
    for package in pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"COPY {package} {package}" in text
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= set(pyproject["project"]["optional-dependencies"])


@pytest.mark.parametrize("service", SIDES)
def test_variables_are_names_of_settings(compose: dict[str, Any], service: str) -> None:
    fields = _settings(service).model_fields
    given = {name for name in _environment(compose, service) if name.startswith("TIDEGATE_")}
    assert given <= {f"TIDEGATE_{field.upper()}" for field in fields}


@pytest.mark.parametrize("service", SIDES)
def test_values_are_accepted_by_the_settings(
    compose: dict[str, Any], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _environment(compose, service).items():
        monkeypatch.setenv(name, value)
    assert _settings(service)() is not None


@pytest.mark.parametrize("service", SIDES)
def test_docker_waits_longer_than_the_drain(compose: dict[str, Any], service: str) -> None:
    grace_s = float(compose["services"][service]["stop_grace_period"].removesuffix("s"))
    assert grace_s > _settings(service).model_fields["drain_s"].default
