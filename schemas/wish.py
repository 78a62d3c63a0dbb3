"""ModelWish: a control record by which an operator asks a pool to load a model before its first record, or unload it.

A gateway writes it, workers follow. A wish is no promise: memory decides, and a request loads what was unloaded.
Knows no Kafka client.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.tensor import Buffer

_KEY = "wish/"
_RECENT_MS = 10 * 60_000  # a worker that starts up to so much later still fulfils it: it may have been started for it


class ModelWish(msgspec.Struct, frozen=True):
    """`version` is empty for the default one, in an unload for all that are loaded.

    `at_ms`: Unix time, by the gateway's clock.
    """

    action: Literal["load", "unload"]
    at_ms: int
    version: str = ""

    def is_recent(self, now_ms: int) -> bool:
        """Whether a worker that starts now should still fulfil it."""
        return now_ms - self.at_ms <= _RECENT_MS


_decoder = msgspec.json.Decoder(ModelWish)


def wish_key(model: str) -> bytes:
    """The compaction key: a model has one wish, the latest."""
    return (_KEY + model).encode()


def encode_wish(wish: ModelWish) -> bytes:
    """The value of a wish's record."""
    return msgspec.json.encode(wish)


def decode_wish(key: Buffer | None, value: Buffer | None) -> tuple[str, ModelWish] | None:
    """Read a control record: (model, wish); None for other kinds of record, and for one that cannot be read."""
    name = bytes(key or b"").decode(errors="replace")
    if not name.startswith(_KEY) or value is None:
        return None
    try:
        return name.removeprefix(_KEY), _decoder.decode(value)
    except msgspec.DecodeError:
        return None
