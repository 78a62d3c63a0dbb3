"""The manifests of deploy/keda/ as tests look at them, and JSON schemas made strict."""

from pathlib import Path
from typing import Any

import yaml
from jsonschema.validators import validator_for

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"

Object = dict[str, Any]


def of_pool(text: str, pool: str) -> str:
    """What the README's command makes of a manifest for another pool."""
    return "".join(
        line.replace("default", pool, 1) if line.endswith("# pool\n") else line for line in text.splitlines(True)
    )


def load(name: str, *, pool: str = "default") -> list[Object]:
    return list(yaml.safe_load_all(of_pool((DEPLOY / "keda" / f"{name}.yaml").read_text(), pool)))


def load_all(*, pool: str = "default") -> list[Object]:
    return [each for name in ("gateway", "worker", "scaledobject") for each in load(name, pool=pool)]


def one(kind: str, file: str) -> Object:
    (found,) = (each for each in load(file) if each["kind"] == kind)
    return found


def pod_of(side: str) -> Object:
    pod: Object = one("Deployment", side)["spec"]["template"]["spec"]
    return pod


def container_of(side: str) -> Object:
    container: Object
    (container,) = pod_of(side)["containers"]
    return container


def environment_of(side: str) -> dict[str, str]:
    """A container's environment, with the shared ConfigMap, and a stand-in for each value of a Secret."""
    shared = one("ConfigMap", "gateway")
    assert {"configMapRef": {"name": shared["metadata"]["name"]}} in container_of(side)["envFrom"]
    own = {each["name"]: each.get("value", "stand-in for a secret") for each in container_of(side)["env"]}
    return {**shared["data"], **own}


def closed(schema: Any) -> Any:
    """The schema, but no object may have properties that it does not declare.

    API servers drop what they do not know without a word: for a manifest that is a mistake.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: closed(value) for key, value in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict


def violations(schema: Any, document: Object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator_for(schema)(schema).iter_errors(document)]
