"""GPUs as NVIDIA's library tells them. There is none on most machines: a library with the same surface stands in."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from workers import devices
from workers.devices import Gpu, describe_gpu, gpus, memory_bytes, visible

_UUIDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Library:
    """The part of nvidia-ml-py that is used; a handle is an index."""

    NVMLError = NVMLError

    def __init__(self, init_error: int = 0) -> None:
        self._init_error = init_error

    def nvmlInit(self) -> None:  # noqa: N802 - the library's names, here and below
        if self._init_error:
            raise NVMLError(self._init_error)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(_UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return 100 if uuid.startswith("MIG-") else _UUIDS.index(uuid)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:  # noqa: N802
        assert handle == 100
        return 2

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return _UUIDS[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(used=handle + 1, total=1000 + handle)

    def nvmlDeviceGetName(self, handle: int) -> bytes | str:  # noqa: N802
        return b"NVIDIA H200" if handle == 0 else f"GPU {handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return 9, handle

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return 13020


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices._library.cache_clear()
    yield
    devices._library.cache_clear()


def use(library: Library | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)


def test_every_gpu_with_its_memory_and_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Library(), monkeypatch)
    assert gpus() == (0, 1, 2)
    assert memory_bytes(1) == (2, 1001)
    assert describe_gpu(0) == Gpu("NVIDIA H200", "9.0", "580.65.06, CUDA 13.2")


def test_only_the_visible_ones_numbered_as_cuda_does(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Library(), monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert gpus() == (0, 1)
    assert memory_bytes(0) == (3, 1002)
    assert describe_gpu(1).name == "NVIDIA H200"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-9")
    assert memory_bytes(0) == (101, 1100)
    assert describe_gpu(0).name == "GPU 2"


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Library(), monkeypatch)
    for gpu in (3, -1):
        with pytest.raises(LookupError, match="0, 1, 2"):
            memory_bytes(gpu)


@pytest.mark.parametrize("library", [None, Library(9), Library(12)], ids=["package", "driver", "driver's library"])
def test_without_package_or_driver_there_is_no_gpu(library: Library | None, monkeypatch: pytest.MonkeyPatch) -> None:
    use(library, monkeypatch)
    assert gpus() == ()
    with pytest.raises(LookupError, match="none"):
        describe_gpu(0)


def test_a_broken_driver_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Library(18), monkeypatch)
    with pytest.raises(NVMLError):
        gpus()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, _UUIDS),
        ("", ()),
        ("-1", ()),
        ("1", (_UUIDS[1],)),
        (" 1 , 0 ", (_UUIDS[1], _UUIDS[0])),
        ("0,9,1", (_UUIDS[0],)),  # CUDA stops at the first that is not there
        ("GPU-c", (_UUIDS[2],)),
        ("GPU-aa", ()),  # two begin so
        ("GPU-aab,GPU-cccc-3", (_UUIDS[1], _UUIDS[2])),
        ("MIG-7,0", ("MIG-7", _UUIDS[0])),
        ("all", ()),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, expected: tuple[str, ...]) -> None:
    assert visible(text, _UUIDS) == expected
