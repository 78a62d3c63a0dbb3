"""ModelConfigError and ConfigFault: what is wrong with a model's configuration, raised or collected.

Must not know where a configuration comes from.
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.errors import ErrorCode, InferenceError


class ModelConfigError(InferenceError):
    """A model's configuration is wrong or asks for what is not there; names field, value and remedy."""

    def __init__(self, message: str, *, field: str, value: Any = "", remedy: str = "") -> None:
        super().__init__(ErrorCode.MODEL_LOAD_FAILED, message, field=field, value=value, remedy=remedy)


class ConfigFault(msgspec.Struct, frozen=True):
    """One thing to correct in a configuration. `what` goes on from "<field> <value> of model <name>"."""

    field: str
    value: Any
    what: str
    remedy: str

    def error(self, model: str) -> ModelConfigError:
        """The same to raise, or to tell."""
        said = f" {self.value!r}" if isinstance(self.value, str | int | list) and self.value != "" else ""
        return ModelConfigError(
            f"{self.field}{said} of model {model!r} {self.what}",
            field=self.field,
            value=self.value,
            remedy=self.remedy,
        )
