"""Catalogue: the models that the installation serves, as the control topic tells. Knows no Kafka and no repository."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from schemas.control import LoadProgress, ModelAnnouncement, decode_announcement, decode_load_progress
from schemas.errors import ErrorCode, InferenceError
from schemas.tensor import Buffer

_log = structlog.get_logger(__name__)


class Catalogue:
    """Models by name, topic and pool. Kept up to date by `apply`; complete once `complete` is set."""

    def __init__(self, *, on_announced: Callable[[ModelAnnouncement], None] = lambda announcement: None) -> None:
        """`on_announced` is called for each new or changed model."""
        self._by_name: dict[str, ModelAnnouncement] = {}
        self._loading: dict[str, LoadProgress] = {}
        self._on_announced = on_announced
        self._on_loading: Callable[[str, LoadProgress | None, int], None] = lambda name, progress, now_ms: None
        self.complete = False

    def apply(self, key: Buffer | None, value: Buffer | None) -> None:
        """Take one control record in. One that cannot be read is logged and leaves what is known."""
        try:
            change = decode_announcement(key, value)
        except InferenceError as error:
            _log.error("skip_control_record", error=error.message)
            return
        if change is None:
            self._apply_progress(key, value)
            return
        name, announcement = change
        if announcement is None:
            self._by_name.pop(name, None)
            _log.info("forget_model", model=name)
        elif announcement != self._by_name.get(name):
            self._by_name[name] = announcement
            versions = announcement.metadata.versions
            _log.info("learn_model", model=name, pool=announcement.pool, versions=versions, epoch=announcement.epoch)
            self._on_announced(announcement)

    def observe_loading(self, note: Callable[[str, LoadProgress | None, int], None]) -> None:
        """Call `note(model, progress, now_ms)` with each progress of a load that comes, None when there is none."""
        self._on_loading = note

    def loading(self, name: str, now_ms: int) -> LoadProgress | None:
        """How far a worker is with loading the model; None when none is known to load it."""
        progress = self._loading.get(name)
        return progress if progress is not None and progress.is_recent(now_ms) else None

    def _apply_progress(self, key: Buffer | None, value: Buffer | None) -> None:
        change = decode_load_progress(key, value)
        if change is None:
            return
        name, progress = change
        self._on_loading(name, progress, time.time_ns() // 1_000_000)
        if progress is None:
            self._loading.pop(name, None)
        else:
            self._loading[name] = progress

    def model(self, name: str) -> ModelAnnouncement:
        """A model by name. Raises InferenceError: MODEL_NOT_FOUND, or UNAVAILABLE while not all models are known."""
        found = self._by_name.get(name)
        if found is None:
            self._require_complete()
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no model {name!r}",
                field="model",
                value=name,
                remedy="check the name; a model is known once a worker of its pool has announced it",
            )
        return found

    def of_topic(self, topic: str) -> ModelAnnouncement | None:
        """The model whose request topic this is."""
        return next((model for model in self._by_name.values() if model.topic == topic), None)

    def pool(self, pool: str) -> tuple[ModelAnnouncement, ...]:
        """The models of a pool. Raises InferenceError: MODEL_NOT_FOUND, or UNAVAILABLE while not all are known."""
        models = tuple(model for model in self._by_name.values() if model.pool == pool)
        if not models:
            self._require_complete()
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no pool {pool!r}",
                field="pool",
                value=pool,
                remedy="check the name; a pool is known once a worker of it has announced a model",
            )
        return models

    def models(self) -> list[ModelAnnouncement]:
        """All models, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def pools(self) -> frozenset[str]:
        """All pools."""
        return frozenset(model.pool for model in self._by_name.values())

    def _require_complete(self) -> None:
        if not self.complete:
            raise InferenceError(ErrorCode.UNAVAILABLE, "the models are not known yet", remedy="try again in a moment")
