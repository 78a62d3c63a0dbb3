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

# Of the protocol, what works in HTTP and gRPC alike.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)


class Models:
    """GET routes below /v2: server metadata, health, model metadata, configuration, readiness."""

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
            Route(f"{model}/config", self._get_config, methods=["GET"]),
            Route(f"{versioned}/config", self._get_config, methods=["GET"]),
            Route(f"{model}/ready", self._get_model_ready, methods=["GET"]),
            Route(f"{versioned}/ready", self._get_model_ready, methods=["GET"]),
        ]

    async def _get_ready(self, request: Request) -> Response:
        ready = self._is_ready()
        return json_response({"ready": ready}, status=200 if ready else 503)

    async def _get_model(self, request: Request) -> Response:
        return json_response(metadata_document(self._find(request)))

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's configuration as it is served, JSON in the field names of Triton's schema.

        Raises InferenceError as `Catalogue.model` and `ModelMetadata.resolve` do; UNSUPPORTED when no worker tells it.
        """
        model = self._catalogue.model(name)
        model.metadata.resolve(version)
        if model.config is None:
            raise InferenceError(
                ErrorCode.UNSUPPORTED,
                f"the workers of model {name!r} do not tell its configuration",
                field="model",
                value=name,
                remedy="update the workers of its pool",
            )
        return model.config

    async def _get_config(self, request: Request) -> Response:
        config = self.config(request.path_params["model"], request.path_params.get("version", ""))
        return json_response(config)

    async def _get_model_ready(self, request: Request) -> Response:
        if not self._is_ready():
            raise InferenceError(ErrorCode.UNAVAILABLE, "this gateway takes no requests now", remedy="try again")
        return json_response({"name": self._find(request).name, "ready": True})

    def _find(self, request: Request) -> ModelMetadata:
        metadata = self._catalogue.model(request.path_params["model"]).metadata
        metadata.resolve(request.path_params.get("version", ""))
        return metadata


def server_version() -> str:
    """The version of tidegate."""
    try:
        return version("tidegate")
    except PackageNotFoundError:  # run from a source tree
        return "0"


async def _get_server(request: Request) -> Response:
    return json_response({"name": "tidegate", "version": server_version(), "extensions": EXTENSIONS})


async def _get_live(request: Request) -> Response:
    return json_response({"live": True})


def metadata_document(metadata: ModelMetadata) -> dict[str, Any]:
    """A model's metadata as the protocol has it; the batch dimension is -1."""

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


def json_response(document: Any, *, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")
