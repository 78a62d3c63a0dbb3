"""GrpcModels: the calls about the server and its models: health, metadata, configuration, statistics, repository.

Each takes a message's bytes and gives an answer's. Knows no server and no Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf import json_format

from gateway.catalogue import Catalogue
from gateway.grpc_messages import inference_pb2 as pb
from gateway.grpc_visit import Visit
from gateway.models import EXTENSIONS, Models, metadata_document, server_version
from gateway.repository import Repository
from gateway.statistics import Statistics, statistics_document
from schemas.errors import ErrorCode, InferenceError

_WHY_NOT = "a model's files and configuration come from its repository, not from a call"


class GrpcModels:
    """The calls. All raise InferenceError, and DecodeError for what is no message."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        models: Models,
        statistics: Statistics,
        repository: Repository,
        is_ready: Callable[[], bool],
    ) -> None:
        self._catalogue = catalogue
        self._models = models
        self._statistics = statistics
        self._repository = repository
        self._is_ready = is_ready

    async def live(self, body: bytes, visit: Visit) -> bytes:
        """The call ServerLive."""
        return pb.ServerLiveResponse(live=True).SerializeToString()

    async def ready(self, body: bytes, visit: Visit) -> bytes:
        """The call ServerReady."""
        return pb.ServerReadyResponse(ready=self._is_ready()).SerializeToString()

    async def server(self, body: bytes, visit: Visit) -> bytes:
        """The call ServerMetadata."""
        answer = pb.ServerMetadataResponse(name="tidegate", version=server_version(), extensions=EXTENSIONS)
        return answer.SerializeToString()

    async def model_ready(self, body: bytes, visit: Visit) -> bytes:
        """The call ModelReady: not ready, rather than an error, of a model that there is none of."""
        asked = pb.ModelReadyRequest.FromString(body)
        visit.caller.require("read", asked.name)
        ready = self._is_ready()
        try:
            self._catalogue.model(asked.name).metadata.resolve(asked.version)
        except InferenceError as error:
            if error.code is not ErrorCode.MODEL_NOT_FOUND:
                raise
            ready = False
        return pb.ModelReadyResponse(ready=ready).SerializeToString()

    async def metadata(self, body: bytes, visit: Visit) -> bytes:
        """The call ModelMetadata."""
        asked = pb.ModelMetadataRequest.FromString(body)
        visit.caller.require("read", asked.name)
        metadata = self._catalogue.model(asked.name).metadata
        metadata.resolve(asked.version)
        return json_format.ParseDict(metadata_document(metadata), pb.ModelMetadataResponse()).SerializeToString()

    async def config(self, body: bytes, visit: Visit) -> bytes:
        """The call ModelConfig. Fields that a newer worker tells and this gateway does not know are left out."""
        asked = pb.ModelConfigRequest.FromString(body)
        visit.caller.require("read", asked.name)
        answer = pb.ModelConfigResponse()
        json_format.ParseDict(self._models.config(asked.name, asked.version), answer.config, ignore_unknown_fields=True)
        return answer.SerializeToString()

    async def statistics(self, body: bytes, visit: Visit) -> bytes:
        """The call ModelStatistics; without a name, of all models that the caller may read about."""
        asked = pb.ModelStatisticsRequest.FromString(body)
        if asked.name:
            visit.caller.require("read", asked.name)
        shown = self._statistics.models(asked.name, asked.version)
        documents = [statistics_document(each) for each in shown if visit.caller.may("read", each.name)]
        return json_format.ParseDict({"model_stats": documents}, pb.ModelStatisticsResponse()).SerializeToString()

    async def index(self, body: bytes, visit: Visit) -> bytes:
        """The call RepositoryIndex."""
        asked = pb.RepositoryIndexRequest.FromString(body)
        answer = pb.RepositoryIndexResponse()
        for each in self._repository.index(ready=asked.ready, caller=visit.caller):
            answer.models.add(name=each.name, version=each.version, state=each.state, reason=each.reason)
        return answer.SerializeToString()

    async def load(self, body: bytes, visit: Visit) -> bytes:
        """The call RepositoryModelLoad; answered when the workers that run have loaded the model."""
        asked = pb.RepositoryModelLoadRequest.FromString(body)
        for name in asked.parameters:
            if name == "config" or name.startswith("file:"):
                raise InferenceError(
                    ErrorCode.UNSUPPORTED,
                    _WHY_NOT,
                    field=f"parameters.{name}",
                    remedy="put them into the repository; workers notice",
                )
        version = asked.parameters["version"].string_param if "version" in asked.parameters else ""
        await self._repository.load(asked.model_name, caller=visit.caller, origin=visit.origin, version=version)
        return pb.RepositoryModelLoadResponse().SerializeToString()

    async def unload(self, body: bytes, visit: Visit) -> bytes:
        """The call RepositoryModelUnload. `unload_dependents` says nothing: no model depends on another."""
        asked = pb.RepositoryModelUnloadRequest.FromString(body)
        await self._repository.unload(asked.model_name, caller=visit.caller, origin=visit.origin)
        return pb.RepositoryModelUnloadResponse().SerializeToString()
