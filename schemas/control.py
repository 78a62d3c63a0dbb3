"""Records of the control topic: which models an installation serves, and which are being loaded.

The topic is compacted, so a reader that starts at its beginning knows every model although no worker runs. Workers
announce; the gateway follows. Knows no Kafka client.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata
from schemas.tensor import Buffer

_MODEL_KEY = "model/"
_LOADING_KEY = "loading/"
_LOADING_MS = 30_000  # a load that has told nothing for so long may have died with its worker


class ModelAnnouncement(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model that a pool serves.

    `epoch` tells one life of the request topic from the next: it is drawn from the topic's id, so a job id of a topic
    that was deleted and created again cannot name a stranger's request. `config` is the configuration that is served,
    as JSON in the field names of Triton's schema; None of a worker that tells none. `labels` are the names of classes
    by output, for outputs that have a label file.
    """

    metadata: ModelMetadata
    pool: str
    topic: str
    epoch: int
    partitions: int
    config: dict[str, Any] | None = None
    labels: dict[str, tuple[str, ...]] = {}


class LoadProgress(msgspec.Struct, frozen=True):
    """A model version that a worker is loading: `fetched_ratio` of its files are there, from 0 to 1. Unix time."""

    version: str
    fetched_ratio: float
    at_ms: int

    def is_recent(self, now_ms: int) -> bool:
        """False for what a worker that has died left behind."""
        return now_ms - self.at_ms <= _LOADING_MS


_progress_decoder = msgspec.json.Decoder(LoadProgress)
_decoder = msgspec.json.Decoder(ModelAnnouncement)


def announcement_key(model: str) -> bytes:
    """The compaction key of a model's announcement."""
    return (_MODEL_KEY + model).encode()


def encode_announcement(announcement: ModelAnnouncement) -> bytes:
    """The value of an announcement's record."""
    return msgspec.json.encode(announcement)


def decode_announcement(key: Buffer | None, value: Buffer | None) -> tuple[str, ModelAnnouncement | None] | None:
    """Read a control record: (model, announcement), (model, None) for one withdrawn, None for other kinds of record.

    Raises InferenceError(UNDECODABLE_RECORD) for an announcement that cannot be read.
    """
    name = bytes(key or b"").decode(errors="replace")
    if not name.startswith(_MODEL_KEY):
        return None
    model = name.removeprefix(_MODEL_KEY)
    if value is None:
        return model, None
    try:
        return model, _decoder.decode(value)
    except msgspec.DecodeError as cause:
        raise InferenceError(
            ErrorCode.UNDECODABLE_RECORD, f"the announcement of model {model!r} cannot be read: {cause}", field="value"
        ) from cause


def loading_key(model: str) -> bytes:
    """The compaction key of a model's load progress; its value is absent when nothing is loading."""
    return (_LOADING_KEY + model).encode()


def encode_load_progress(progress: LoadProgress) -> bytes:
    """The value of a load progress record."""
    return msgspec.json.encode(progress)


def decode_load_progress(key: Buffer | None, value: Buffer | None) -> tuple[str, LoadProgress | None] | None:
    """Read a control record: (model, progress), (model, None) when none is loading, None for other kinds of record.

    What cannot be read counts as no progress: it is only ever shown.
    """
    name = bytes(key or b"").decode(errors="replace")
    if not name.startswith(_LOADING_KEY):
        return None
    model = name.removeprefix(_LOADING_KEY)
    try:
        return model, None if value is None else _progress_decoder.decode(value)
    except msgspec.DecodeError:
        return model, None
