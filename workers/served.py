"""ServedModels: which models answer for which request topic, each in one state of the repository.

A state is exchanged as a whole, while requests come in. Must not know Kafka, stores or what is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schemas.model import ModelMetadata, ModelRef
from workers.model_config import ModelConfig
from workers.resident import ModelKey


class ServedModel(msgspec.Struct, frozen=True):
    """A model as it is served now. `fingerprints` are of each version's files and configuration, `labels` the names of
    classes by output.

    `is_timed`: whether parameters of requests set clocks, counted from their arrival. Not so for what is scored later.
    """

    config: ModelConfig
    metadata: ModelMetadata
    fingerprints: dict[str, str] = {}
    labels: dict[str, tuple[str, ...]] = {}
    is_timed: bool = True

    def key(self, version: str) -> ModelKey:
        """What is loaded for a version."""
        return ModelKey(ModelRef(self.config.name, version), self.fingerprints.get(version, ""))

    @property
    def keys(self) -> frozenset[ModelKey]:
        """What may be loaded of the model."""
        return frozenset(self.key(version) for version in self.metadata.versions)


class ServedModels:
    """Served models by request topic. Lives on the event loop."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._by_topic = dict(models)

    def of_topic(self, topic: str) -> ServedModel:
        """The model of a topic that is consumed here."""
        return self._by_topic[topic]

    def has_topic(self, topic: str) -> bool:
        """Whether the topic is consumed here."""
        return topic in self._by_topic

    def of_model(self, name: str) -> ServedModel | None:
        """The model of this name; None: it is not served here."""
        return next((model for model in self._by_topic.values() if model.config.name == name), None)

    def topics_of(self, model: str) -> list[str]:
        """The topics whose requests are for this model."""
        return [topic for topic, served in self._by_topic.items() if served.config.name == model]

    def put(self, topic: str, model: ServedModel) -> None:
        """Serve this from now on."""
        self._by_topic[topic] = model
