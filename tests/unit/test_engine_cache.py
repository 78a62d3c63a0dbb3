import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from workers.devices import Gpu
from workers.engine_cache import EngineKey, cached_engine, digest_of, engine_directory

GPU = Gpu("NVIDIA H200", "9.0", "580.65.06, CUDA 13.0")
KEY = EngineKey(GPU, "tensorrt 11.4.0", "abc", {"fp16": "1", "max": "x:8x4"})


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(KEY, gpu=msgspec.structs.replace(GPU, name="NVIDIA H100")),
        msgspec.structs.replace(KEY, gpu=msgspec.structs.replace(GPU, compute_capability="9.1")),
        msgspec.structs.replace(KEY, gpu=msgspec.structs.replace(GPU, driver="580.65.07, CUDA 13.0")),
        msgspec.structs.replace(KEY, runtime="tensorrt 11.4.1"),
        msgspec.structs.replace(KEY, model_digest="abd"),
        msgspec.structs.replace(KEY, flags={"fp16": "0", "max": "x:8x4"}),
        msgspec.structs.replace(KEY, flags={"fp16": "1"}),
    ],
)
def test_whatever_an_engine_depends_on_changes_its_directory(other: EngineKey, tmp_path: Path) -> None:
    assert engine_directory(other, tmp_path) != engine_directory(KEY, tmp_path)


def test_the_order_of_flags_does_not_count() -> None:
    again = msgspec.structs.replace(KEY, flags={"max": "x:8x4", "fp16": "1"})
    assert again.digest() == KEY.digest()


def test_the_directory_is_this_users_alone_and_may_be_said_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_ENGINE_CACHE", str(tmp_path / "engines"))
    directory = engine_directory(KEY)
    assert directory.parent == tmp_path / "engines"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert engine_directory(KEY) == directory


def test_a_models_digest_is_of_its_files_names_and_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1two2")
    two.write_bytes(b"3")
    digest = digest_of([one, two])
    assert digest_of([two, one]) == digest
    one.write_bytes(b"1")
    two.write_bytes(b"2two3")  # the same bytes, one after the other
    assert digest_of([one, two]) != digest


def test_an_engine_is_built_once_among_many_and_kept(tmp_path: Path) -> None:
    built = []
    together = threading.Barrier(8)

    def build() -> bytes:
        built.append(1)
        return b"engine"

    def get(_: int) -> bytes:
        together.wait()
        return cached_engine(tmp_path / "engine.plan", build)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(get, range(8))) == {b"engine"}
    assert len(built) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == ["engine.plan", "engine.plan.lock"]


def test_a_build_that_fails_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    def fail() -> bytes:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached_engine(tmp_path / "engine.plan", fail)
    assert not (tmp_path / "engine.plan").exists()
    assert cached_engine(tmp_path / "engine.plan", lambda: b"engine") == b"engine"


def test_what_a_killed_build_left_is_not_taken_for_an_engine(tmp_path: Path) -> None:
    (tmp_path / "engine.plan.part").write_bytes(b"half")
    assert cached_engine(tmp_path / "engine.plan", lambda: b"engine") == b"engine"
