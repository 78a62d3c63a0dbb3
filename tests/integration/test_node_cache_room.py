"""The node cache within its room, over networks that break, with names that mislead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas.errors import InferenceError
from schemas.model import ModelRef
from store import DiskFull, StoreError, open_store
from store.ranged_download import MAX_CONNECTIONS, PART_BYTES
from tests import models
from tests.integration.s3_models import MB, URL, add, bytes_in, cause_of, entries, fetch, fetcher, told
from tests.integration.s3_stub import S3Stub
from workers.cache_budget import CacheTooSmall
from workers.repository import FetchedVersion, ModelRepository

# Room


def take(cache: Path, stub: S3Stub, model: str, **options: int) -> FetchedVersion:
    if f"{model}/1/model.onnx" not in stub.objects:
        add(stub, model, MB)
    return fetch(cache, model, **options)


def test_more_than_the_budget_fails_before_a_byte_is_fetched(stub: S3Stub, cache: Path) -> None:
    take(cache, stub, "kept", cache_bytes=1_500_000).close()
    add(stub, "m", 2 * MB)
    stub.forget()
    assert isinstance(cause_of("m", cache, cache_bytes=1_500_000), CacheTooSmall)
    assert stub.requests == ["LIST m/"]
    assert len(entries(cache)) == 1  # evicted in vain


def test_the_least_recently_used_makes_way_and_what_is_held_never(stub: S3Stub, cache: Path) -> None:
    budget = 3 * MB + 10_000
    take(cache, stub, "a", cache_bytes=budget).close()
    held = take(cache, stub, "a", cache_bytes=budget)  # found, not fetched
    for model in ("b", "c", "b", "d"):  # of b and c, c was used less recently when d comes
        take(cache, stub, model, cache_bytes=budget).close()
    stub.forget()
    take(cache, stub, "a", cache_bytes=budget).close()
    take(cache, stub, "b", cache_bytes=budget).close()
    assert stub.body_bytes == 0
    take(cache, stub, "c", cache_bytes=budget).close()
    assert stub.body_bytes == MB // 65536 * 65536
    assert (held.path / "model.onnx").exists()
    assert bytes_in(cache) <= budget + 200_000  # blocks, manifests and listings


def test_all_held_is_a_full_disk_for_now(stub: S3Stub, cache: Path) -> None:
    budget = 2 * MB
    held = take(cache, stub, "a", cache_bytes=budget)
    other = take(cache, stub, "b", cache_bytes=budget)
    add(stub, "m")
    stub.forget()
    full = cause_of("m", cache, cache_bytes=budget)
    assert isinstance(full, DiskFull)
    assert full.retryable
    assert full.need_bytes == MB // 65536 * 65536
    assert full.budget_bytes == budget
    assert full.free_bytes < full.need_bytes
    assert stub.requests == ["LIST m/"]
    other.close()
    other.close()
    take(cache, stub, "m", cache_bytes=budget).close()
    assert (held.path / "model.onnx").exists()


def test_another_process_evicts_nothing_that_one_holds_until_it_ends(stub: S3Stub, cache: Path) -> None:
    budget = 1_500_000
    add(stub, "m")
    add(stub, "other")
    with fetcher(cache, cache_bytes=budget) as process:
        path = Path(told(process))
        assert isinstance(cause_of("other", cache, cache_bytes=budget), DiskFull)
        assert path.is_dir()
        process.kill()
        process.wait()
        fetch(cache, "other", cache_bytes=budget).close()
    assert not path.exists()


def test_fetches_at_once_reserve_before_they_write(stub: S3Stub, cache: Path) -> None:
    budget = 3 * MB
    models = [f"m{number}" for number in range(12)]
    for model in models:
        add(stub, model)
    most: list[int] = []
    repository = ModelRepository(open_store(URL), cache=cache, cache_bytes=budget)

    def fetch_and_let_go(model: str) -> bool:
        try:
            with repository.fetch(ModelRef(model)), open(cache / ".lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # nothing is reserved, published or removed while we look
                most.append(sum(bytes_in(path) for path in cache.iterdir() if path.name != "listings"))
        except InferenceError as error:
            if not isinstance(error.__cause__, DiskFull):  # the others are under way, and in nobody's way later
                raise
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        assert any(threads.map(fetch_and_let_go, models))
    assert max(most) <= budget + 200_000


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]).returncode:
        pytest.skip("mounting a small disk takes root and the right to mount")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def test_a_full_disk_publishes_nothing_and_leaves_nothing(stub: S3Stub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk:
        add(stub, "m", 32 * MB)
        full = cause_of("m", disk, cache_bytes=10**12)
        assert isinstance(full, DiskFull)
        assert full.free_bytes < full.need_bytes
        assert entries(disk) == set()
        assert bytes_in(disk) < 100_000
        assert isinstance(cause_of("m", disk), CacheTooSmall)  # without a budget the disk is the budget


def test_a_full_disk_is_emptied_of_what_nobody_holds(stub: S3Stub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk:
        add(stub, "old", 12 * MB)
        fetch(disk, "old", cache_bytes=10**12).close()
        data = add(stub, "m", 12 * MB)
        with fetch(disk, "m", cache_bytes=10**12) as fetched:
            assert (fetched.path / "model.onnx").read_bytes() == data
            assert entries(disk) == {fetched.digest}


def test_without_a_budget_a_tenth_of_the_disk_stays_free(stub: S3Stub, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "20m") as disk:
        for number in range(4):
            add(stub, f"m{number}", 5 * MB)  # a fourth would fit, but leave too little free
            fetch(disk, f"m{number}").close()
            usage = os.statvfs(disk)
            assert usage.f_bavail >= 0.1 * usage.f_blocks - 100
        assert len(entries(disk)) == 3


# What networks do


def test_cut_connections_go_on_where_they_broke(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m", 12 * PART_BYTES)
    stub.body_of = lambda key, number, body: body[: len(body) // 2] if number % 5 == 0 else body
    with fetch(cache) as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == data
    assert len(stub.requests) > 12 + 2
    assert stub.body_bytes <= 1.3 * len(data)


_EIGHT = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from schemas.model import ModelRef
from store import open_store
from workers.repository import ModelRepository
repository = ModelRepository(open_store("s3://bucket"), cache=Path(sys.argv[1]))
repository.fetch(ModelRef("first", "1"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(8) as threads:
    list(threads.map(lambda number: repository.fetch(ModelRef(f"m{number}", "1")), range(8)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, flush=True)
"""


def test_eight_loads_at_once_stay_within_memory_and_connections(stub: S3Stub, cache: Path) -> None:
    add(stub, "first", 3 * PART_BYTES)
    for number in range(8):
        add(stub, f"m{number}", 4 * PART_BYTES)
    with fetcher(cache, script=_EIGHT) as process:
        grown_kib = int(told(process))
    assert grown_kib <= 64 * 1024
    assert 8 < stub.most_gets <= MAX_CONNECTIONS


def test_all_requests_go_to_the_endpoint_whatever_transfer_library_is_there(
    stub: S3Stub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from boto3.s3 import transfer

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a transfer client may take its requests to another endpoint")

    monkeypatch.setattr(transfer, "create_transfer_manager", refuse)
    add(stub, "m", 2 * PART_BYTES)
    fetch(cache).close()
    assert len(stub.requests) == 4


# Names


def test_names_that_begin_alike_and_odd_keys_are_kept_apart(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "a", 1000)
    add(stub, "a-hf", 1000)
    for key in ("a", "a/", "a/1", "a/1/", "a/1/empty/", "a/1//model.onnx", "a/1/../../../x", "/a/1/x", "a/10/y"):
        stub.objects[key] = b""
    with fetch(cache, "a") as fetched:
        files = {str(path.relative_to(fetched.path)): path for path in fetched.path.rglob("*")}
        assert [*files] == ["model.onnx"]
        assert files["model.onnx"].read_bytes() == data
    prefixed = ModelRepository(open_store(f"{URL}/a/"), cache=cache)
    assert prefixed.list_models() == ["1", "10"]
    assert not (cache.parent / "x").exists()


def test_warm_up_data_comes_with_the_version(stub: S3Stub, cache: Path) -> None:
    add(stub, "m", 1000)
    assert not fetch(cache).warm_up_path.exists()
    stub.objects["m/warmup/raw"] = b"123"
    stub.forget()
    with fetch(cache) as fetched:
        assert (fetched.warm_up_path / "raw").read_bytes() == b"123"
    assert stub.body_bytes == 3


def test_reading_a_model_holds_nothing(stub: S3Stub, cache: Path) -> None:
    add(stub, "m", 1000)
    stub.objects["m/config.pbtxt"] = b""
    stub.objects["m/1/model.onnx"] = models.identity().SerializeToString()
    ModelRepository(open_store(URL), cache=cache, cache_bytes=MB).read("m")
    size_bytes = len(add(stub, "other"))
    with fetch(cache, "other", cache_bytes=size_bytes) as other:
        assert entries(cache) == {other.digest}


def test_a_store_error_is_told_with_its_cause(stub: S3Stub, cache: Path) -> None:
    add(stub, "m")
    stub.is_away = True
    assert isinstance(cause_of("m", cache), StoreError)
