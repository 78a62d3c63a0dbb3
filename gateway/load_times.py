"""LoadTimes: how long models take to load, measured from what workers tell while they load. Pure."""

from __future__ import annotations

import msgspec

from schemas.control import LoadProgress

_MAX_MODELS = 10_000


class _Load(msgspec.Struct):
    """A model's load: since when, or None while there is none; and how long the last one took."""

    begun_ms: int | None = None
    last_at_ms: int = 0
    took_ms: int | None = None


class LoadTimes:
    """Loads by model. Only short ones are told of too late to be measured; they do not matter."""

    def __init__(self) -> None:
        self._loads: dict[str, _Load] = {}

    def note(self, model: str, progress: LoadProgress | None, now_ms: int) -> None:
        """Take a model's progress in; None: nothing is loading any more."""
        load = self._loads.get(model)
        if load is None:
            if progress is None:
                return
            if len(self._loads) >= _MAX_MODELS:
                del self._loads[next(iter(self._loads))]
            load = self._loads[model] = _Load()
        if progress is None:
            # Not of what is read back at a start: that was over long ago.
            if load.begun_ms is not None and LoadProgress("", 0.0, load.last_at_ms).is_recent(now_ms):
                load.took_ms = max(0, now_ms - load.begun_ms)
            load.begun_ms = None
            return
        if load.begun_ms is None or not LoadProgress("", 0.0, load.last_at_ms).is_recent(progress.at_ms):
            load.begun_ms = progress.at_ms
        load.last_at_ms = progress.at_ms

    def left_s(self, model: str, now_ms: int) -> float | None:
        """In how many seconds the load under way may be over, by the last one; None when there was none."""
        load = self._loads.get(model)
        if load is None or load.begun_ms is None or load.took_ms is None:
            return None
        return max(0, load.took_ms - (now_ms - load.begun_ms)) / 1000

    def took_s(self, model: str) -> float | None:
        """How long the model's last load took, in seconds; None when there was none."""
        load = self._loads.get(model)
        return None if load is None or load.took_ms is None else load.took_ms / 1000
