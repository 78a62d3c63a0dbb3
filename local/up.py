"""`up`: keeps a stack up until Ctrl-C and prints commands that work on it, made from the first model's metadata.

Must not know how a model computes: what it takes is read from the gateway, like any caller would.
"""

import json
import math
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from local.errors import LocalStackError
from local.magika import lay_out_repository
from local.stack import POOL, Stack, StackStartError
from schemas.topics import Topics

_ANNOUNCED_TIMEOUT_S = 10.0
_MAX_INLINE_CHARS = 200
_ZERO: dict[str, Any] = {"BOOL": False, "BYTES": "text"}  # anything else: 0


def run_up(*, models: str, keep: Path | None, port: int, say: Callable[[str], None]) -> None:
    """Start a stack, print what to try, and wait until it is interrupted.

    Args:
        models: the model repository; empty: the demo's model.
        keep: see Stack.
        port: of the gateway; 0: any free one.
        say: told each line.

    Raises:
        LocalStackError: something could not be started, or ended by itself. Whatever is raised, all is stopped.
    """
    with TemporaryDirectory(prefix="tidegate-models-") as own:
        if not models:
            lay_out_repository(Path(own))
        elif "://" not in models:
            _check_repository(Path(models))
        say("starting Kafka, a gateway and a worker")
        try:
            with Stack(models=models or own, keep=keep, port=port, say=say) as stack:
                for line in _lines(stack):
                    say(line)
                stack.wait()
        finally:
            say("stopped")


def _check_repository(directory: Path) -> None:
    if not directory.is_dir() or not any(path.is_dir() for path in directory.iterdir()):
        raise LocalStackError(
            f"--models {directory} is no model repository; make it a directory that holds <model>/<version>/model.onnx"
        )


def _lines(stack: Stack) -> list[str]:
    pool = f"/scaling/v1/pools/{POOL}"
    try:
        stack.await_answer(pool, timeout_s=_ANNOUNCED_TIMEOUT_S)
    except StackStartError as cause:
        raise StackStartError(
            f"no model of the repository can be served. The end of the worker's log:\n{stack.log_tail('worker')}"
        ) from cause
    with httpx.Client(base_url=stack.url, trust_env=False) as client:
        names = sorted(client.get(pool).raise_for_status().json()["models"])
        metadata = client.get(f"/v2/models/{names[0]}").raise_for_status().json()
    model, data = f"{stack.url}/v2/models/{names[0]}", _data(stack.directory, example(metadata))
    return [
        f"serving {', '.join(names)}; try:",
        "",
        "# health, and what the model takes and gives",
        f"curl {stack.url}/v2/health/ready",
        f"curl {model}",
        "# ask and wait for the answer",
        f"curl {model}/infer -d {data}",
        "# ask, and get a job to look at later",
        f"job={stack.url}$(curl -si -H 'Prefer: respond-async' {model}/infer -d {data}"
        " | tr -d '\\r' | sed -n 's/^location: //p')",
        'curl "$job?wait=30"; echo; curl $job/result',
        "# what an autoscaler reads",
        f"curl {stack.url}{pool}",
        "# everything in the model's request topic once more, offline, into a topic of your own",
        _score(stack, names[0]),
        "",
        f"for people: {stack.url}/status and {stack.url}/docs",
        f"gRPC: {stack.grpc}",
        f"Kafka's bootstrap servers: {stack.bootstrap}",
        f"logs: {stack.logs}",
        "Ctrl-C stops everything",
    ]


def example(metadata: dict[str, Any]) -> dict[str, Any]:
    """A v2 request of zeros that fits a model's metadata; a dimension of any size is 1."""
    inputs = []
    for tensor in metadata["inputs"]:
        shape = [max(1, size) if size < 0 else size for size in tensor["shape"]]
        data = [_ZERO.get(tensor["datatype"], 0)] * math.prod(shape)
        inputs.append({"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": data})
    return {"inputs": inputs}


def _data(directory: Path, request: dict[str, Any]) -> str:
    """What curl's -d is given: the request itself, or a file of it when it is long."""
    text = json.dumps(request, separators=(",", ":"))
    if len(text) <= _MAX_INLINE_CHARS:
        return shlex.quote(text)
    path = directory / "example.json"
    path.write_text(text)
    return shlex.quote(f"@{path}")


def _score(stack: Stack, model: str) -> str:
    environment = stack.environment()
    settings = " ".join(
        f"{name}={shlex.quote(environment[name])}" for name in ("TIDEGATE_KAFKA_BOOTSTRAP", "TIDEGATE_REPOSITORY")
    )
    source = Topics(environment["TIDEGATE_PREFIX"]).infer(model)
    return f"{settings} {shlex.quote(sys.executable)} -m workers score --model {model} --from {source} --to scored"
