"""The node cache over an S3 server that counts and misbehaves: what is fetched, how often, and what stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from store import DigestMismatch, DiskFull, StoreError, StoreUnavailable, open_store
from store.ranged_download import MAX_CONNECTIONS, PART_BYTES
from tests import models
from tests.integration.s3_stub import BUCKET, S3Stub
from tests.s3_process import lead_boto3_to
from workers.cache_budget import CacheTooSmall
from workers.node_cache import NodeCache
from workers.repository import FetchedVersion, ModelRepository

URL = f"s3://{BUCKET}"
MB = 1_000_000
CONFIG = b"""
backend: "onnxruntime"
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
"""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Stub]:
    with S3Stub() as server:
        lead_boto3_to(server.url, monkeypatch)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def add(stub: S3Stub, model: str, size_bytes: int = MB, **files: bytes) -> bytes:
    """A model of one version; gives its largest file."""
    data = os.urandom(min(size_bytes, 64 * 1024)) * (size_bytes // min(size_bytes, 64 * 1024))
    stub.objects[f"{model}/config.pbtxt"] = CONFIG
    stub.objects[f"{model}/1/model.onnx"] = data
    for name, content in files.items():
        stub.objects[f"{model}/1/{name}"] = content
    return data


def fetch(cache: Path, model: str = "m", *, cache_bytes: int = 0) -> FetchedVersion:
    """As a process does that was started just now."""
    return ModelRepository(open_store(URL), cache=cache, cache_bytes=cache_bytes).fetch(ModelRef(model, "1"))


def cause_of(model: str, cache: Path, *, cache_bytes: int = 0) -> BaseException | None:
    with pytest.raises(InferenceError) as raised:
        fetch(cache, model, cache_bytes=cache_bytes)
    assert raised.value.code is ErrorCode.MODEL_LOAD_FAILED
    return raised.value.__cause__


def entries(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.name not in {".lock", "listings"}}


def bytes_in(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


# What is fetched, and how often


def test_a_warm_restart_asks_for_a_listing_and_no_body(stub: S3Stub, cache: Path) -> None:
    add(stub, "m")
    ModelRepository(open_store(URL), cache=cache).read("m")
    first = fetch(cache)
    first.close()
    stub.forget()
    repository = ModelRepository(open_store(URL), cache=cache)
    assert repository.read("m").versions == ("1",)
    assert repository.fetch(ModelRef("m", "1")).path == first.path
    assert stub.requests == ["LIST m/", "LIST m/"]
    assert stub.body_bytes == 0


def test_a_small_object_is_one_request_and_a_large_one_its_parts(stub: S3Stub, cache: Path) -> None:
    add(stub, "m", PART_BYTES)
    fetch(cache)
    assert stub.requests == ["LIST m/", "GET m/1/model.onnx"]
    data = add(stub, "large", 3 * PART_BYTES)
    stub.forget()
    assert (fetch(cache, "large").path / "model.onnx").read_bytes() == data
    assert sorted(stub.requests) == ["GET large/1/model.onnx"] * 3 + ["HEAD large/1/model.onnx", "LIST large/"]
    assert stub.body_bytes == len(data)


def test_fifty_fetchers_at_once_are_one_download(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m", 4 * MB)
    repository = ModelRepository(open_store(URL), cache=cache)
    with ThreadPoolExecutor(50) as threads:
        fetched = list(threads.map(lambda _: repository.fetch(ModelRef("m")), range(50)))
    assert {version.path for version in fetched} == {fetched[0].path}
    assert stub.body_bytes == len(data)
    assert stub.requests.count("GET m/1/model.onnx") == 1


def test_hits_of_many_threads_fetch_nothing(stub: S3Stub, cache: Path) -> None:
    add(stub, "m")
    store = open_store(URL)
    objects = list(store.list("m/1/"))
    node_cache = NodeCache(cache, store)

    def take(_: int) -> None:
        for _ in range(100):
            node_cache.fetch(objects, prefix="m/1/", on_progress=lambda done, total: None).close()

    take(0)
    stub.forget()
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(take, range(32)))
    assert stub.requests == []


_FETCH = """
import sys
from pathlib import Path
from schemas.model import ModelRef
from store import open_store
from workers.repository import ModelRepository
repository = ModelRepository(open_store("s3://bucket"), cache=Path(sys.argv[1]), cache_bytes=int(sys.argv[2]))
fetched = repository.fetch(ModelRef("m", "1"))
print(fetched.path, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def fetcher(cache: Path, *, cache_bytes: int = 0, script: str = _FETCH) -> Iterator[subprocess.Popen[str]]:
    """A process that fetches the model, tells where it is, and holds it until it is closed."""
    command = [sys.executable, "-c", script, str(cache), str(cache_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_of_one_cache_fetch_each_byte_once(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m", 3 * PART_BYTES)
    cache.mkdir()
    with fetcher(cache) as one, fetcher(cache) as other:
        assert told(one) == told(other) != ""
    assert stub.body_bytes == len(data)


def test_an_object_touched_and_not_changed_is_the_same(stub: S3Stub, cache: Path) -> None:
    add(stub, "m")
    repository = ModelRepository(open_store(URL), cache=cache)
    before, digest = repository.fingerprint("m"), fetch(cache).digest
    stub.modified_s += 3600
    stub.forget()
    assert repository.fingerprint("m") == before
    assert stub.requests == ["LIST m/"]
    assert fetch(cache).digest == digest
    assert stub.body_bytes == 0


@pytest.mark.parametrize("changed", ["m/1/model.onnx", "m/2/model.onnx", "m/config.pbtxt", "m/warmup/raw"])
def test_a_fingerprint_changes_with_files_versions_configuration_and_warm_up(
    stub: S3Stub, cache: Path, changed: str
) -> None:
    add(stub, "m")
    add(stub, "m-hf")
    repository = ModelRepository(open_store(URL), cache=cache)
    before = repository.fingerprint("m")
    add(stub, "m-hf")
    assert repository.fingerprint("m") == before
    stub.objects[changed] = b"new"
    assert repository.fingerprint("m") != before


# Whole, or not at all


_KILLED = """
import os, signal, sys
from pathlib import Path
from schemas.model import ModelRef
from store import open_store
from workers.repository import ModelRepository
def kill(done, total):
    if done * 2 > total:
        os.kill(os.getpid(), signal.SIGKILL)
ModelRepository(open_store("s3://bucket"), cache=Path(sys.argv[1])).fetch(ModelRef("m", "1"), on_progress=kill)
"""


def test_a_part_left_by_a_killed_process_is_never_used_and_is_removed(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m", 3 * PART_BYTES, small=b"x")
    with fetcher(cache, script=_KILLED) as process:
        assert process.wait() == -signal.SIGKILL
    left = entries(cache)
    assert [name.startswith(".fetching-") for name in left] == [True]
    add(stub, "other")
    with fetch(cache, "other") as other:
        assert entries(cache) == {other.digest}  # swept by whoever starts next
    with fetch(cache) as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == data


def test_the_part_of_a_living_process_is_left_alone(stub: S3Stub, cache: Path) -> None:
    add(stub, "m", 3 * PART_BYTES)
    add(stub, "other")
    is_there, go_on = threading.Event(), threading.Event()

    def hold(key: str) -> None:
        if key.startswith("m/"):
            is_there.set()
            go_on.wait(30)

    stub.before_get = hold
    with fetcher(cache) as process:
        assert is_there.wait(30)
        fetch(cache, "other").close()
        go_on.set()
        assert Path(told(process)).is_dir()


@pytest.mark.parametrize("spoil", ["remove a file", "cut a file", "remove the manifest"])
def test_an_entry_that_is_not_whole_is_fetched_again(stub: S3Stub, cache: Path, spoil: str) -> None:
    data = add(stub, "m", MB, a=b"a" * 10, b=b"b" * 10)
    with fetch(cache) as fetched:
        path = fetched.path
    if spoil == "remove a file":
        (path / "a").unlink()
    elif spoil == "cut a file":
        os.truncate(path / "model.onnx", 100)
    else:
        (path.parent / "manifest.json").unlink()
    stub.forget()
    with fetch(cache) as fetched:
        assert sorted(file.name for file in fetched.path.iterdir()) == ["a", "b", "model.onnx"]
        assert (fetched.path / "model.onnx").read_bytes() == data
    assert stub.body_bytes > 0


def test_a_store_that_fails_leaves_what_is_cached_and_it_is_served(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m")
    add(stub, "late")
    repository = ModelRepository(open_store(URL), cache=cache)
    config = repository.read("m")
    assert repository.list_models() == ["late", "m"]
    fetch(cache).close()
    stub.is_away = True
    restarted = ModelRepository(open_store(URL), cache=cache)
    assert restarted.list_models() == ["late", "m"]
    assert restarted.read("m") == config
    with restarted.fetch(ModelRef("m")) as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == data
    assert isinstance(cause_of("late", cache), StoreUnavailable)
    with pytest.raises(InferenceError):  # who looks for changes must not take the last answer for a new one
        restarted.fingerprint("m")


def flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1]) if body else body


def test_an_object_that_keeps_coming_damaged_is_refused(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m", 2 * PART_BYTES)
    stub.objects["m/1/SHA256SUMS"] = f"{sha256(data).hexdigest()}  model.onnx\n".encode()
    stub.body_of = lambda key, number, body: flipped(body) if key.endswith("onnx") else body
    assert isinstance(cause_of("m", cache), DigestMismatch)
    assert stub.requests.count("GET m/1/model.onnx") == 2 * 3
    assert entries(cache) == set()
    stub.body_of = lambda key, number, body: body
    with fetch(cache) as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == data


def test_an_object_that_comes_damaged_once_is_fetched_again(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m")
    stub.objects["m/1/SHA256SUMS"] = f"{sha256(data).hexdigest()} *./model.onnx\n".encode()
    stub.body_of = lambda key, number, body: flipped(body) if (key[-4:], number) == ("onnx", 0) else body
    with fetch(cache) as fetched:
        assert (fetched.path / "model.onnx").read_bytes() == data


@pytest.mark.parametrize("sums", ["nonsense\n", f"{'0' * 64}  absent.bin\n"])
def test_a_list_of_digests_that_cannot_be_followed_is_refused(stub: S3Stub, cache: Path, sums: str) -> None:
    add(stub, "m", 1000)
    stub.objects["m/1/SHA256SUMS"] = sums.encode()
    assert isinstance(cause_of("m", cache), DigestMismatch)
    assert entries(cache) == set()


def test_peak_disk_use_is_the_model_and_little_more(stub: S3Stub, cache: Path) -> None:
    data = add(stub, "m", 3 * PART_BYTES, other=b"x" * MB)
    peaks: list[int] = []
    repository = ModelRepository(open_store(URL), cache=cache)
    with repository.fetch(ModelRef("m"), on_progress=lambda done, total: peaks.append(bytes_in(cache))):
        peaks.append(bytes_in(cache))
    assert len(peaks) > 100
    assert max(peaks) <= 1.05 * (len(data) + MB)


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
