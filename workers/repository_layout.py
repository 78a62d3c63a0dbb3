"""The layout of a model repository, Triton's: which names are models, versions, configuration and model files. Pure.

`<model>/config.pbtxt`, `<model>/<version>/<files>`, `<model>/warmup/<files>`. Must not know where the files are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from schemas.errors import InferenceError
from schemas.topics import check_model_name
from workers.model_config import ModelConfig, ModelConfigError

CONFIG_FILENAME = "config.pbtxt"
WARM_UP_DIRECTORY = "warmup"
_VERSION = re.compile(r"[1-9][0-9]*")  # Triton's rule: a leading 0, or anything but digits, is no version
_MODEL_FILENAMES = {
    "onnxruntime": ("model.onnx",),
    "pytorch": ("model.pt", "model.pt2"),
    "tensorrt": ("model.plan", "model.onnx"),
}


def is_model_name(name: str) -> bool:
    """Whether a directory of this name can be a model."""
    try:
        check_model_name(name)
    except InferenceError:
        return False
    return True


def versions_in(children: Iterable[str]) -> set[int]:
    """The versions among the names right below a model, where directories end in '/'."""
    return {int(name[:-1]) for name in children if name.endswith("/") and _VERSION.fullmatch(name[:-1])}


def model_filenames(config: ModelConfig) -> tuple[str, ...]:
    """The names of which one must be in a version's directory; none where the backend needs no file."""
    if config.backend == "python":
        module = config.parameters.get("class", config.default_model_filename.removesuffix(".py") or "model")
        return (module.partition(":")[0].partition(".")[0] + ".py",)
    if config.default_model_filename:
        return (config.default_model_filename,)
    return _MODEL_FILENAMES.get(config.backend, ())


def decoded(raw: bytes, model: str) -> str:
    """The text of a config.pbtxt. Raises ModelConfigError when it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise ModelConfigError(
            f"{CONFIG_FILENAME} of model {model!r} is not UTF-8 text: {cause}",
            field=CONFIG_FILENAME,
            value=f"byte {cause.start}",
            remedy="save it as UTF-8",
        ) from cause
