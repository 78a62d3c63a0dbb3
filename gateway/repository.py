"""Repository: the protocol's model repository extension: which models there are, and loading and unloading them.

Loading is a wish to the workers of the model's pool (schemas/wish.py): a model is loaded by its first request anyway.
Knows no Kafka client and no files of models.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.audit import Audit
from gateway.broker import Broker
from gateway.caller import Caller, caller_in
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.kafka_client import BrokerError
from gateway.management import origin_of
from gateway.models import json_response
from schemas.control import ModelAnnouncement
from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.topics import Topics
from schemas.wish import ModelWish, encode_wish, wish_key
from schemas.worker_report import ModelStatistics

_log = structlog.get_logger(__name__)

_LOAD_TIMEOUT_S = 60.0
_UNLOAD_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 1024 * 1024
_GONE = "gone"  # of a worker that tells nothing any more: it holds up nobody


class IndexEntry(msgspec.Struct, frozen=True):
    """A model version: `state` is READY, LOADING or UNAVAILABLE in the protocol's words, `reason` says more."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository:
    """Index, load and unload. `routes` are for reading, `management_routes` for whoever may manage."""

    def __init__(self, *, broker: Broker, topics: Topics, catalogue: Catalogue, fleet: Fleet, audit: Audit) -> None:
        self._broker = broker
        self._topics = topics
        self._catalogue = catalogue
        self._fleet = fleet
        self._audit = audit

    def routes(self) -> list[Route]:
        """What to mount for all callers."""
        paths = ("/v2/repository/index", "/v2/repository/{repository}/index")
        return [Route(path, self._post_index, methods=["POST"]) for path in paths]

    def management_routes(self) -> list[Route]:
        """What to mount for those who manage."""
        heads = ("/v2/repository/models/{model}", "/v2/repository/{repository}/models/{model}")
        loads = [Route(f"{head}/load", self._post_load, methods=["POST"]) for head in heads]
        return loads + [Route(f"{head}/unload", self._post_unload, methods=["POST"]) for head in heads]

    def index(self, *, ready: bool = False, caller: Caller | None = None) -> list[IndexEntry]:
        """All model versions, or with `ready` those that take requests; of a caller, those that they may read."""
        entries = [
            self._entry(model, version)
            for model in self._catalogue.models()
            if caller is None or caller.may("read", model.metadata.name)
            for version in model.metadata.versions
        ]
        return [entry for entry in entries if entry.state == "READY"] if ready else entries

    async def load(self, model: str, *, caller: Caller, origin: str, version: str = "") -> str:
        """Have the model loaded by every worker of its pool that runs now; returns what came of it, in words.

        `origin` is the caller's address, for the audit record. Raises InferenceError: PERMISSION_DENIED,
        MODEL_NOT_FOUND, UNAVAILABLE when Kafka takes no audit record or wish, or the workers are not done within a
        minute, MODEL_LOAD_FAILED with the first worker's reason.
        """
        async with self._audit.of(caller, "load", f"{model}/{version}" if version else model, origin=origin):
            return await self._load(model, caller, version)

    async def unload(self, model: str, *, caller: Caller, origin: str) -> str:
        """Have the model evicted from memory; its next request loads it again. Returns what came of it, in words.

        Raises InferenceError: PERMISSION_DENIED, MODEL_NOT_FOUND, UNAVAILABLE when Kafka takes no audit record or wish.
        """
        async with self._audit.of(caller, "unload", model, origin=origin):
            return await self._unload(model, caller)

    async def _load(self, model: str, caller: Caller, version: str) -> str:
        workers = self._fleet.of_pool(self._catalogue.model(model).pool, _now_ms())
        announced, version = await self._wish("load", model, caller, version)
        if not workers:
            return f"no worker of pool {announced.pool!r} is running; those that start in the next minutes will load it"

        def told() -> list[ModelStatistics]:
            living = self._fleet.living(_now_ms())
            found = [
                (self._on(worker, model, version), living.get(worker) is report) for worker, report in workers.items()
            ]
            # What had failed before the wish is being tried again.
            return [on for on, is_old in found if on.state in ("ready", _GONE) or (on.state == "failed" and not is_old)]

        if not await self._fleet.wait_until(lambda: len(told()) == len(workers), timeout_s=_LOAD_TIMEOUT_S):
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"{len(told())} of {len(workers)} workers have loaded model {model!r} so far",
                remedy="ask for the index, which tells when it is loaded",
            )
        for each in told():
            if each.state == "failed":
                raise InferenceError(ErrorCode.MODEL_LOAD_FAILED, f"model {model!r} does not load: {each.reason}")
        return f"loaded by {len(workers)} workers"

    async def _unload(self, model: str, caller: Caller) -> str:
        announced, _ = await self._wish("unload", model, caller, "")
        workers = self._fleet.of_pool(announced.pool, _now_ms())

        def is_gone() -> bool:
            versions = announced.metadata.versions
            states = {self._on(worker, model, version).state for worker in workers for version in versions}
            return not states & {"ready", "loading", "fetching"}

        if await self._fleet.wait_until(is_gone, timeout_s=_UNLOAD_TIMEOUT_S):
            return f"unloaded by {len(workers)} workers"
        return "still in use; workers unload it when they have finished its requests"

    async def _wish(
        self, action: Literal["load", "unload"], model: str, caller: Caller, version: str
    ) -> tuple[ModelAnnouncement, str]:
        caller.require("manage", model)
        announced = self._catalogue.model(model)
        version = announced.metadata.resolve(version)
        value = encode_wish(ModelWish(action, _now_ms(), version if action == "load" else ""))
        try:
            await self._broker.append(self._topics.control, wish_key(model), value)
        except (BrokerError, TimeoutError) as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"Kafka does not take the wish: {cause!r}", remedy="try again in a moment"
            ) from cause
        _log.info("wish_model", action=action, model=model, version=version, caller=caller.name)
        return announced, version

    def _entry(self, model: ModelAnnouncement, version: str) -> IndexEntry:
        name = model.metadata.name
        states = [self._on(worker, name, version) for worker in self._fleet.of_pool(model.pool, _now_ms())]
        if states and all(each.state == "failed" for each in states):
            return IndexEntry(name, version, "UNAVAILABLE", states[0].reason)
        if any(each.state == "ready" for each in states):
            return IndexEntry(name, version, "READY")
        if any(each.state in ("fetching", "loading") for each in states):
            return IndexEntry(name, version, "LOADING")
        return IndexEntry(name, version, "READY", "not in memory; its first request loads it")

    def _on(self, worker: str, model: str, version: str) -> ModelStatistics:
        report = self._fleet.living(_now_ms()).get(worker)
        for each in report.models if report is not None else ():
            if (each.name, each.version) == (model, version):
                return each
        return ModelStatistics(model, version, "unloaded" if report is not None else _GONE)

    async def _post_index(self, request: Request) -> Response:
        ready = (await _body(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise invalid("ready is neither true nor false", field="ready", value=ready, remedy="send true or false")
        entries = self.index(ready=ready, caller=caller_in(request.scope))
        return json_response(entries)

    async def _post_load(self, request: Request) -> Response:
        model, parameters = request.path_params["model"], (await _body(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise invalid("parameters are no object", field="parameters", value=parameters, remedy="send a JSON object")
        for name in parameters:
            if name == "config" or name.startswith("file:"):
                raise InferenceError(
                    ErrorCode.UNSUPPORTED,
                    "a model's files and configuration come from its repository, not from a call",
                    field=f"parameters.{name}",
                    remedy="put them into the repository; workers notice",
                )
        version, scope = str(parameters.get("version", "")), request.scope
        done = await self.load(model, caller=caller_in(scope), origin=origin_of(scope), version=version)
        return json_response({"name": model, "result": done})

    async def _post_unload(self, request: Request) -> Response:
        model = request.path_params["model"]
        await _body(request)  # unload_dependents: no model depends on another
        scope = request.scope
        done = await self.unload(model, caller=caller_in(scope), origin=origin_of(scope))
        return json_response({"name": model, "result": done})


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request; nothing means an empty one. Raises InferenceError."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise InferenceError(
                ErrorCode.PAYLOAD_TOO_LARGE,
                f"the body has more than {_MAX_BODY_BYTES} bytes",
                field="body",
                remedy="models' files come from the repository, not from a call",
            )
    try:
        return msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as cause:
        raise invalid(f"the body is no JSON object: {cause}", field="body", remedy="send a JSON object") from cause


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
