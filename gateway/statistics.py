"""Statistics: what the workers have done with each model, in the protocol's form. Knows no Kafka."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.caller import caller_in
from gateway.catalogue import Catalogue
from gateway.fleet import Fleet
from gateway.models import json_response
from schemas.worker_report import Duration, ModelStatistics


class Statistics:
    """The routes /v2/models/stats and /v2/models/{model}[/versions/{version}]/stats."""

    def __init__(self, *, catalogue: Catalogue, fleet: Fleet) -> None:
        self._catalogue = catalogue
        self._fleet = fleet

    def routes(self) -> list[Route]:
        """What to mount, in front of the routes that would take `stats` for a model's name."""
        return [
            Route("/v2/models/stats", self._get_all, methods=["GET"]),
            Route("/v2/models/{model}/stats", self._get, methods=["GET"]),
            Route("/v2/models/{model}/versions/{version}/stats", self._get, methods=["GET"]),
        ]

    def models(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """The sums over all workers, one for each served version, also of those that nobody has used.

        An empty name means all models. Raises InferenceError as `Catalogue.model` and `ModelMetadata.resolve` do.
        """
        announced = [self._catalogue.model(name)] if name else self._catalogue.models()
        sums: dict[tuple[str, str], ModelStatistics] = {}
        for each in announced:
            metadata = each.metadata
            versions = (metadata.resolve(version),) if version else metadata.versions
            sums |= {(metadata.name, served): ModelStatistics(metadata.name, served) for served in versions}
        for done in self._fleet.statistics():
            key = (done.name, done.version)
            if key in sums:
                sums[key] += done
        return [sums[key] for key in sorted(sums)]

    async def _get_all(self, request: Request) -> Response:
        caller = caller_in(request.scope)
        shown = [each for each in self.models() if caller.may("read", each.name)]
        return json_response({"model_stats": [statistics_document(each) for each in shown]})

    async def _get(self, request: Request) -> Response:
        name, version = request.path_params["model"], request.path_params.get("version", "")
        return json_response({"model_stats": [statistics_document(each) for each in self.models(name, version)]})


def statistics_document(done: ModelStatistics) -> dict[str, Any]:
    """A model version's statistics as the protocol's statistics extension has them; times in nanoseconds."""
    return {
        "name": done.name,
        "version": done.version,
        "last_inference": done.last_inference_ms,
        "inference_count": done.rows,
        "execution_count": done.batches,
        "inference_stats": {
            "success": _duration(done.success),
            "fail": _duration(done.fail),
            "queue": _duration(done.queue),
            "compute_input": _duration(done.assemble),
            "compute_infer": _duration(done.infer),
            "compute_output": _duration(done.answer),
            "cache_hit": _duration(Duration()),
            "cache_miss": _duration(Duration()),
        },
        "batch_stats": [
            {
                "batch_size": batch.rows,
                "compute_input": _duration(Duration(batch.count, batch.assemble_us)),
                "compute_infer": _duration(Duration(batch.count, batch.infer_us)),
                "compute_output": _duration(Duration(batch.count, batch.answer_us)),
            }
            for batch in done.batch_sizes
        ],
        "memory_usage": [],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": 1000 * duration.total_us}
