"""The node cache over an S3 server that counts and misbehaves: what is fetched, how often, and that it is whole."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from schemas.errors import InferenceError
from schemas.model import ModelRef
from store import DigestMismatch, StoreUnavailable, open_store
from store.ranged_download import PART_BYTES
from tests.integration.s3_models import MB, URL, add, bytes_in, cause_of, entries, fetch, fetcher, told
from tests.integration.s3_stub import S3Stub
from workers.node_cache import NodeCache
from workers.repository import ModelRepository

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
