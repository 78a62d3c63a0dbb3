"""Models: the protocol's routes about the server and its models. Knows no Kafka."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.catalogue import Catalogue
from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, TensorSpec


class Models:
    """GET routes below /v2: server metadata, health, model metadata, model readiness."""

    def __init__(self, *, catalogue: Catalogue, is_ready: Callable[[], bool]) -> None:
        self._catalogue = catalogue
        self._is_ready = is_ready

    def routes(self) -> list[Route]:
        """What to mount."""
        model, versioned = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
        return [
            Route("/v2", _get_server, methods=["GET"]),
            Route("/v2/health/live", _get_live, methods=["GET"]),
            Route("/v2/health/ready", self._get_ready, methods=["GET"]),
            Route(model, self._get_model, methods=["GET"]),
            Route(versioned, self._get_model, methods=["GET"]),
            Route(f"{model}/ready", self._get_model_ready, methods=["GET"]),
            Route(f"{versioned}/ready", self._get_model_ready, methods=["GET"]),
        ]

    async def _get_ready(self, request: Request) -> Response:
        ready = self._is_ready()
        return _json({"ready": ready}, status=200 if ready else 503)

    async def _get_model(self, request: Request) -> Response:
        return _json(_document(self._find(request)))

    async def _get_model_ready(self, request: Request) -> Response:
        if not self._is_ready():
            raise InferenceError(ErrorCode.UNAVAILABLE, "this gateway takes no requests now", remedy="try again")
        return _json({"name": self._find(request).name, "ready": True})

    def _find(self, request: Request) -> ModelMetadata:
        metadata = self._catalogue.model(request.path_params["model"]).metadata
        metadata.resolve(request.path_params.get("version", ""))
        return metadata


async def _get_server(request: Request) -> Response:
    try:
        ours = version("tidegate")
    except PackageNotFoundError:  # run from a source tree
        ours = "0"
    return _json({"name": "tidegate", "version": ours, "extensions": ["binary_tensor_data"]})


async def _get_live(request: Request) -> Response:
    return _json({"live": True})


def _document(metadata: ModelMetadata) -> dict[str, Any]:
    def tensors(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        batch = [-1] if metadata.max_batch_size else []
        return [{"name": spec.name, "datatype": spec.datatype, "shape": [*batch, *spec.shape]} for spec in specs]

    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "inputs": tensors(metadata.inputs),
        "outputs": tensors(metadata.outputs),
    }


def _json(document: dict[str, Any], *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")
