"""The settings of tidegate among a configuration's `parameters`: padding, and the time that a batch may run.

Other parameters are the backend's own. Must not know the rest of the configuration, nor protobuf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from workers.config_error import ConfigFault
from workers.padding_config import Padding

_EXECUTION_TIMEOUT = "execution_timeout_ms"
_THREADS = "intra_op_thread_count"
_PADDING = (
    "padding_buckets",
    "padding_inputs",
    "padding_value",
    "padding_mask_input",
    "padding_length_input",
    "padding_outputs",
)
_CLASS_PARAMETER = "class"
SETTINGS = (_EXECUTION_TIMEOUT, *_PADDING, _THREADS, _CLASS_PARAMETER)
_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_WHOLE = re.compile(r"[0-9]{1,15}")


def execution_timeout_ms(parameters: Mapping[str, str]) -> int:
    """Milliseconds that a batch may run; 0 where it may run without end, or where the setting is faulty."""
    return _whole(parameters.get(_EXECUTION_TIMEOUT, "")) or 0


def padding(parameters: Mapping[str, str]) -> Padding | None:
    """The padding, or None where there is none or the settings are faulty."""
    if "padding_buckets" not in parameters or any(_padding_faults(parameters)):
        return None
    return Padding(
        buckets=tuple(int(bucket) for bucket in _items(parameters["padding_buckets"])),
        inputs=_items(parameters["padding_inputs"]),
        value=float(parameters.get("padding_value", "0")),
        mask_input=parameters.get("padding_mask_input", ""),
        length_input=parameters.get("padding_length_input", ""),
        outputs=_items(parameters.get("padding_outputs", "")),
    )


def parameter_faults(parameters: Mapping[str, str], *, backend: str) -> Iterator[ConfigFault]:
    """Every fault in the settings themselves; whether the tensors that they name exist is for later."""
    if _whole(parameters.get(_EXECUTION_TIMEOUT, "0")) is None:
        value = parameters[_EXECUTION_TIMEOUT]
        yield _fault(_EXECUTION_TIMEOUT, value, "is no whole number", "give milliseconds; 0: without end")
    if not _whole(parameters.get(_THREADS, "1")):
        yield _fault(_THREADS, parameters[_THREADS], "is no whole number from 1", "give one such, or leave it out")
    class_name = parameters.get(_CLASS_PARAMETER, "model:Model")
    if backend == "python" and not _CLASS.fullmatch(class_name):
        yield _fault(_CLASS_PARAMETER, class_name, "names no class", "give module:Class, such as model:Model")
    yield from _padding_faults(parameters)


def _padding_faults(parameters: Mapping[str, str]) -> Iterator[ConfigFault]:
    given = [name for name in _PADDING if name in parameters]
    if not given:
        return
    buckets = parameters.get("padding_buckets", "")
    lengths = [_whole(item) for item in _items(buckets)]
    if not lengths:
        yield _fault("padding_buckets", buckets, "is missing, beside " + given[-1], 'give lengths, such as "16,32,64"')
    elif not all(lengths):
        yield _fault("padding_buckets", buckets, "is no list of whole numbers from 1", 'write them as "16,32,64"')
    elif lengths != sorted({length for length in lengths if length}):
        yield _fault("padding_buckets", buckets, "does not ascend", "give each length once, the smallest first")
    for name in ("padding_inputs", "padding_outputs"):
        items = _items(parameters.get(name, ""))
        if not all(items) or len(set(items)) != len(items):
            yield _fault(name, parameters[name], "has an empty or repeated name", "separate different names by commas")
    if not _items(parameters.get("padding_inputs", "")):
        yield _fault("padding_inputs", "", "is missing, beside padding_buckets", "name the inputs to pad")
    value = parameters.get("padding_value", "0")
    if not _is_number(value):
        yield _fault("padding_value", value, "is no number", 'give one, such as "0"')


def _fault(name: str, value: str, what: str, remedy: str) -> ConfigFault:
    return ConfigFault(f"parameters.{name}", value, what, remedy)


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


def _whole(text: str) -> int | None:
    """The whole number that the text is, or None."""
    return int(text) if _WHOLE.fullmatch(text) else None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
