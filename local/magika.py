"""The demo's model, which tells what kind of file some bytes are: makes its input, and lays its files out.

The files are those of the package magika, as are the rules of the input: it documents them, and carries their numbers
in the model's own configuration. Must not know tidegate's parts: this makes numbers, names and a model repository. The
package is not imported, only its files are read.
"""

from __future__ import annotations

import filecmp
import importlib.util
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

MODEL_NAME = "magika"
INPUT_NAME = "bytes"
OUTPUT_NAME = "target_label"
MAX_BATCH_SIZE = 32
MAX_QUEUE_DELAY_US = 2000


class _Rules(msgspec.Struct, frozen=True):
    """The model's own configuration: sizes are in bytes of the file, and in elements of the input."""

    beg_size: int
    mid_size: int
    end_size: int
    block_size: int
    padding_token: int
    min_file_size_for_dl: int
    target_labels_space: tuple[str, ...]
    use_inputs_at_offsets: bool = False


def features(content: bytes) -> npt.NDArray[np.int32] | None:
    """A file's content as the model's input, int32 of shape [2048]; None when it is too small to tell.

    The first 1024 bytes that follow the leading white space of the first block, then the last 1024 before the trailing
    white space of the last block; places without a byte hold the padding token, after the head and before the tail.
    """
    rules = _rules()
    head = content[: rules.block_size].lstrip()[: rules.beg_size]
    if len(head) < rules.min_file_size_for_dl:
        return None
    tail = content[-rules.block_size :].rstrip()[-rules.end_size :]
    size = rules.beg_size + rules.end_size
    made = np.full(size, rules.padding_token, dtype=np.int32)
    made[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    made[size - len(tail) :] = np.frombuffer(tail, dtype=np.uint8)
    return made


def labels() -> tuple[str, ...]:
    """The label of each of the model's scores, in order."""
    return _rules().target_labels_space


def top_label(scores: Sequence[float] | npt.NDArray[np.float32]) -> tuple[str, float]:
    """The label with the highest score, and the score."""
    best = int(np.argmax(scores))
    return labels()[best], float(scores[best])


def model_path() -> Path:
    """The ONNX file in the installed package. Raises ModuleNotFoundError, saying what to install, when it is not."""
    return _directory() / "model.onnx"


def lay_out_repository(directory: Path) -> Path:
    """Write the model as `<directory>/magika/config.pbtxt` and `/1/model.onnx`; gives `<directory>/magika`.

    Files that are there already and the same are left alone.
    """
    model = directory / MODEL_NAME
    (model / "1").mkdir(parents=True, exist_ok=True)
    target = model / "1" / "model.onnx"
    if not target.exists() or not filecmp.cmp(model_path(), target, shallow=False):
        shutil.copyfile(model_path(), target)
    (model / "config.pbtxt").write_text(_config_text())
    return model


def _config_text() -> str:
    rules = _rules()
    return f"""name: "{MODEL_NAME}"
backend: "onnxruntime"
max_batch_size: {MAX_BATCH_SIZE}
input {{ name: "{INPUT_NAME}" data_type: TYPE_INT32 dims: [ {rules.beg_size + rules.end_size} ] }}
output {{ name: "{OUTPUT_NAME}" data_type: TYPE_FP32 dims: [ {len(rules.target_labels_space)} ] }}
dynamic_batching {{ max_queue_delay_microseconds: {MAX_QUEUE_DELAY_US} }}
"""


@cache
def _rules() -> _Rules:
    rules = msgspec.json.decode((_directory() / "config.min.json").read_bytes(), type=_Rules)
    if rules.mid_size or rules.use_inputs_at_offsets:
        raise ValueError("the installed magika has a model whose input is made in another way; install magika 1.0")
    return rules


@cache
def _directory() -> Path:
    # Found, not imported: the import would load ONNX Runtime and the model into a client that needs neither.
    package = importlib.util.find_spec("magika")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the demo's model comes with the package magika; pip install 'magika>=1.0.2'")
    models = sorted((Path(package.submodule_search_locations[0]) / "models").glob("*/model.onnx"))
    if not models:
        raise FileNotFoundError(f"the installed package magika has no model in {package.submodule_search_locations[0]}")
    return models[-1].parent
