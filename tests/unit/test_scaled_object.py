"""The ScaledObject: valid by KEDA's schema, and in step with the gateway it reads and the workers it scales."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import yaml

from gateway.backlog import READ_TIMEOUT_S
from gateway.scaling import ModelBacklog, PoolScale
from tests.manifests import Object, closed, environment_of, load, one, violations
from workers.settings import ServeSettings

KEDA_MODULE = "github.com/kedacore/keda/v2@v2.20.2"
KEDA_TIMEOUT_S = 3.0
"""How long KEDA waits for a metrics API unless it is told otherwise."""


def _scaled_object() -> Object:
    spec: Object = one("ScaledObject", "scaledobject")["spec"]
    return spec


def _trigger() -> Object:
    trigger: Object
    (trigger,) = _scaled_object()["triggers"]
    return trigger


def _object(**properties: Object) -> Object:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _relied_on() -> Object:
    """The structure of ScaledObject as far as ours uses it, for where KEDA's own schema is not at hand."""
    count, name, number = (
        {"type": "integer", "minimum": 0},
        {"type": "string"},
        {"type": "string", "pattern": "^[0-9]+$"},
    )
    rule = _object(type={"enum": ["Pods", "Percent"]}, value=count, periodSeconds={**count, "minimum": 1})
    rules = _object(stabilizationWindowSeconds=count, policies={"type": "array", "items": rule})
    behavior = _object(scaleUp=rules, scaleDown=rules)
    trigger = _object(
        type=name,
        metricType={"enum": ["AverageValue", "Value", "Utilization"]},
        metadata=_object(url=name, format=name, valueLocation=name, targetValue=number, activationTargetValue=number),
    )
    return _object(
        apiVersion={"const": "keda.sh/v1alpha1"},
        kind={"const": "ScaledObject"},
        metadata=_object(name=name, namespace=name),
        spec=_object(
            scaleTargetRef=_object(name=name),
            pollingInterval=count,
            cooldownPeriod=count,
            initialCooldownPeriod=count,
            minReplicaCount=count,
            maxReplicaCount=count,
            fallback=_object(
                failureThreshold=count,
                replicas=count,
                behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
            ),
            advanced=_object(
                restoreToOriginalReplicaCount={"type": "boolean"},
                horizontalPodAutoscalerConfig=_object(behavior=behavior),
            ),
            triggers={"type": "array", "items": trigger},
        ),
    )


@pytest.fixture(scope="module")
def keda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KEDA's Go module; without go or the module, the test is skipped."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")  # where Go's own archive is unpacked to
    if go is None:
        pytest.skip("KEDA's own schema comes from its Go module, and there is no go")
    empty = tmp_path_factory.mktemp("no_go_module")
    download = [go, "mod", "download", "-json", KEDA_MODULE]
    found = subprocess.run(download, cwd=empty, capture_output=True, text=True, check=False, timeout=120)
    if found.returncode != 0:
        pytest.skip(f"KEDA's Go module cannot be downloaded: {found.stdout} {found.stderr}")
    return Path(json.loads(found.stdout)["Dir"])


@pytest.fixture(params=["relied on", "of KEDA"])
def schema(request: pytest.FixtureRequest) -> Object:
    if request.param == "relied on":
        return _relied_on()
    definition = request.getfixturevalue("keda") / "config" / "crd" / "bases" / "keda.sh_scaledobjects.yaml"
    (version,) = yaml.safe_load(definition.read_text())["spec"]["versions"]
    found: Object = closed(version["schema"]["openAPIV3Schema"])
    return found


@pytest.mark.parametrize("pool", ["default", "vision-2"])
def test_scaled_object_is_valid_by_its_schema(schema: Object, pool: str) -> None:
    (scaled_object,) = load("scaledobject", pool=pool)
    assert violations(schema, scaled_object) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pollInterval",), 5),
        (("minReplicaCount",), "none"),
        (("fallback", "behavior"), "currentReplicasOrMore"),
        (("advanced", "horizontalPodAutoscalerConfig", "behavior", "scaleUp", "stabilisation"), 0),
    ],
)
def test_a_mistake_in_a_scaled_object_is_seen(schema: Object, path: tuple[str, ...], value: object) -> None:
    (scaled_object,) = load("scaledobject")
    *parents, last = path
    parent = scaled_object["spec"]
    for name in parents:
        parent = parent[name]
    parent[last] = value
    assert len(violations(schema, scaled_object)) == 1


def test_trigger_is_told_what_it_understands(keda: Path) -> None:
    source = (keda / "pkg" / "scalers" / "metrics_api_scaler.go").read_text()
    assert _trigger()["metadata"].keys() <= set(re.findall(r'keda:"name=(\w+)', source))


def test_scaled_object_goes_to_zero_and_up_to_the_partitions_only() -> None:
    spec = _scaled_object()
    assert spec["minReplicaCount"] == 0
    assert "idleReplicaCount" not in spec
    assert spec["maxReplicaCount"] == int(environment_of("worker")["TIDEGATE_PARTITIONS"])
    assert spec["maxReplicaCount"] == ServeSettings.model_fields["partitions"].default


def test_scaling_up_reaches_all_in_one_step_and_scaling_down_waits() -> None:
    spec = _scaled_object()
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    (up,) = behavior["scaleUp"]["policies"]
    assert up["type"] == "Pods"
    assert up["value"] == spec["maxReplicaCount"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 60
    assert behavior["scaleDown"]["policies"]


def test_a_pool_outlives_its_start_and_a_pause() -> None:
    spec = _scaled_object()
    assert spec["cooldownPeriod"] >= 10 * spec["pollingInterval"]
    assert spec["initialCooldownPeriod"] > spec["cooldownPeriod"]
    assert spec["advanced"]["restoreToOriginalReplicaCount"] is True


def test_doubt_keeps_the_workers_there_are_and_wakes_one_where_there_is_none() -> None:
    fallback = _scaled_object()["fallback"]
    assert fallback["behavior"] == "currentReplicasIfHigher"
    assert fallback["replicas"] == 1
    assert _trigger()["metricType"] == "AverageValue"  # a fallback works with this one alone
    assert READ_TIMEOUT_S < KEDA_TIMEOUT_S  # the gateway's word arrives before KEDA gives up


def test_trigger_wakes_at_the_first_record() -> None:
    assert _trigger()["type"] == "metrics-api"
    assert float(_trigger()["metadata"]["activationTargetValue"]) == 0
    assert float(_trigger()["metadata"]["targetValue"]) > 0


def test_trigger_reads_a_number_that_the_gateway_answers() -> None:
    metadata = _trigger()["metadata"]
    answer = PoolScale("default", 3, {"m": ModelBacklog(3)}, 8)
    assert metadata["format"] == "json"
    assert json.loads(msgspec.json.encode(answer))[metadata["valueLocation"]] == 3


def test_trigger_asks_the_service_for_the_pool_that_it_scales() -> None:
    service, worker = one("Service", "gateway"), one("Deployment", "worker")
    url = urlsplit(_trigger()["metadata"]["url"])
    assert url.hostname == f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert url.port == service["spec"]["ports"][0]["port"]
    assert url.path.rpartition("/")[2] == environment_of("worker")["TIDEGATE_POOL"]
    assert _scaled_object()["scaleTargetRef"] == {"name": worker["metadata"]["name"]}
