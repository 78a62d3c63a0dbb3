"""ModelStates: whether this worker has each model version in memory, and what a report tells of each. Pure.

A version may be there in two states of the repository, the one that is served and the one that follows it: then the
better of them counts. Must not know Kafka, and how anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schemas.model import ModelRef
from schemas.worker_report import ModelStatistics
from workers.resident import ModelKey
from workers.statistics import ModelCounters

_BEST_FIRST = ("ready", "loading", "fetching", "failed", "unloaded")
_UNLOADED = ("unloaded", "")
_REASON_CHARS = 300
_MAX_BYTES = 512 * 1024  # of a report's models: a record holds 1 MiB
_MAX_DETAILED_BYTES = 256 * 1024  # from then on without latencies and batch sizes

State = tuple[str, str]  # the state, and why it failed


class ModelStates:
    """States by version. Lives on the event loop."""

    def __init__(self) -> None:
        self._states: dict[ModelRef, dict[str, State]] = {}  # by fingerprint

    def note(self, key: ModelKey, state: str, reason: str = "") -> bool:
        """A model's state, as the cache tells it ("cold": unloaded); whether its version's state has changed."""
        before = self.of(key.ref)
        # A failure is of one state of the files; when another one is under way it says nothing any more.
        states = {name: told for name, told in self._states.get(key.ref, {}).items() if told[0] != "failed"}
        states[key.fingerprint] = (state, reason[:_REASON_CHARS])
        if state == "cold":
            del states[key.fingerprint]
        self._states[key.ref] = states
        if not states:
            del self._states[key.ref]
        return self.of(key.ref) != before

    def of(self, ref: ModelRef) -> State:
        """A version's state, and why it failed."""
        return min(self._states.get(ref, {}).values(), key=_rank, default=_UNLOADED)

    def known(self) -> set[ModelRef]:
        """The versions that are not simply unloaded."""
        return set(self._states)


def _rank(state: State) -> int:
    return _BEST_FIRST.index(state[0])


def told_models(
    counters: Mapping[ModelRef, ModelCounters], states: ModelStates, held_bytes: Mapping[ModelRef, int]
) -> tuple[tuple[ModelStatistics, ...], int]:
    """What a report tells of the models, and how many bytes that takes: those that are used or in memory.

    What would make the record too large is left out: first details, then models; the longest unused first.
    """
    nothing = ModelCounters()
    told: list[ModelStatistics] = []
    for ref in {*counters, *states.known()}:
        state, reason = states.of(ref)
        told.append(
            msgspec.structs.replace(
                counters.get(ref, nothing).told(ref),
                name=ref.name,
                version=ref.version,
                state=state,
                reason=reason,
                memory_bytes=held_bytes.get(ref, 0),
            )
        )
    told.sort(key=lambda model: (model.state == "unloaded", -model.last_inference_ms, model.name, model.version))
    return _within_size(told)


def _within_size(models: list[ModelStatistics]) -> tuple[tuple[ModelStatistics, ...], int]:
    fitting: list[ModelStatistics] = []
    total_bytes = 0
    for model in models:
        size_bytes = len(msgspec.json.encode(model))
        if total_bytes + size_bytes > _MAX_DETAILED_BYTES:
            model = msgspec.structs.replace(model, batch_sizes=(), latency_counts=())
            size_bytes = len(msgspec.json.encode(model))
        if total_bytes + size_bytes > _MAX_BYTES:
            break
        fitting.append(model)
        total_bytes += size_bytes
    return tuple(fitting), total_bytes
