"""Devices: the GPUs of this process, what they are and how full they are, as NVIDIA's driver tells.

GPUs are numbered as CUDA numbers them in this process: from 0, among those that CUDA_VISIBLE_DEVICES leaves. The driver
lists them by PCI bus; CUDA does so too among equal GPUs, and everywhere with CUDA_DEVICE_ORDER=PCI_BUS_ID. No package
or no driver means no GPUs. Must not know models, and creates no CUDA context (that would cost memory).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

# Of nvidia-ml-py's error codes: what a machine without an NVIDIA GPU says.
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12


class Gpu(msgspec.Struct, frozen=True):
    """What compiled engines depend on. `driver` has the driver's version and the CUDA version that it supports."""

    name: str
    compute_capability: str  # such as "9.0"
    driver: str  # such as "580.65.06, CUDA 13.0"


def gpus() -> tuple[int, ...]:
    """The GPUs of this process. Raises the library's own error for a driver that is there and broken."""
    library = _library()
    return tuple(range(len(_tokens(library)))) if library is not None else ()


def memory_bytes(gpu: int) -> tuple[int, int]:
    """Memory of a GPU that is used, by whatever process, and that there is. Raises LookupError: no such GPU."""
    memory = _library_with(gpu).nvmlDeviceGetMemoryInfo(_handle(gpu))
    return int(memory.used), int(memory.total)


def describe_gpu(gpu: int) -> Gpu:
    """What a GPU is. Raises LookupError: no such GPU."""
    library, handle = _library_with(gpu), _handle(gpu)
    if _tokens(library)[gpu].startswith("MIG-"):  # a part of a GPU is of its kind
        handle = library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
    cuda = int(library.nvmlSystemGetCudaDriverVersion_v2())
    return Gpu(
        name=_text(library.nvmlDeviceGetName(handle)),
        compute_capability=f"{major}.{minor}",
        driver=f"{_text(library.nvmlSystemGetDriverVersion())}, CUDA {cuda // 1000}.{cuda % 1000 // 10}",
    )


def visible(text: str | None, uuids: Sequence[str]) -> tuple[str, ...]:
    """The entries of CUDA_VISIBLE_DEVICES that count, each as a whole UUID; None, not set: all of `uuids`.

    As in CUDA, the list ends at the first entry that names no GPU. An entry is an index, the beginning of one UUID, or
    the UUID of a MIG instance.
    """
    if text is None:
        return tuple(uuids)
    found: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdecimal() and int(entry) < len(uuids):
            matches = [uuids[int(entry)]]
        elif entry.startswith("MIG-"):
            matches = [entry]
        else:
            matches = [uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        found += matches
    return tuple(found)


@cache
def _library() -> Any:
    """The driver's library, started; None where there is none. Any: it has no types."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in (_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND):
            return None
        raise
    return pynvml


def _tokens(library: Any) -> tuple[str, ...]:
    handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    uuids = [_text(library.nvmlDeviceGetUUID(handle)) for handle in handles]
    return visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)


def _library_with(gpu: int) -> Any:
    library = _library()
    if library is None or not 0 <= gpu < len(_tokens(library)):
        raise LookupError(f"there is no GPU {gpu}; this process has {', '.join(map(str, gpus())) or 'none'}")
    return library


def _handle(gpu: int) -> Any:
    library = _library()
    return library.nvmlDeviceGetHandleByUUID(_tokens(library)[gpu])


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older versions of the library give bytes
