"""What every object store promises: one suite, run on each of them by a subclass that gives the `store` fixture."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from store import KeyRefused, ObjectNotFound, ObjectStore, open_store
from store.object_store import MAX_KEY_BYTES, TEMPORARY_PREFIX

BAD_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "a//b",
    "a/",
    "..",
    "../a",
    "a/../../b",
    "a/..",
    "./a",
    "a/./b",
    "a\0b",
    "\ud800",
    TEMPORARY_PREFIX + "x",
    f"a/{TEMPORARY_PREFIX}x/b",
    "k" * (MAX_KEY_BYTES + 1),
]
ODD_KEYS = ["a b", "a+b%20c", "ü/日本語.bin", "..a/...", "a?b#c&d=e", "'\"<>\\", "k" * 255]


class StoreContract:
    @pytest.fixture
    def store(self) -> ObjectStore:
        """An empty store."""
        raise NotImplementedError

    def test_put_then_get_and_head_agree(self, store: ObjectStore) -> None:
        assert store.put("results/m/1", b"answer") is True
        assert store.get("results/m/1") == b"answer"
        info = store.head("results/m/1")
        assert (info.key, info.size_bytes) == ("results/m/1", 6)
        assert info.etag
        assert info.modified_ms > 1_600_000_000_000

    def test_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.put("empty", b"")
        assert store.get("empty") == b""
        assert store.head("empty").size_bytes == 0
        assert [info.key for info in store.list("")] == ["empty"]

    def test_put_takes_any_bytes(self, store: ObjectStore) -> None:
        every_second, words = memoryview(b"abcdef")[::2], memoryview(b"abcdef").cast("H")
        for data in (bytearray(b"abc"), memoryview(b"abcdef"), every_second, words, memoryview(b"")):
            store.put("k", data)
            assert store.get("k") == bytes(data)

    def test_put_overwrites_and_etag_changes(self, store: ObjectStore) -> None:
        store.put("k", b"one")
        before = store.head("k")
        assert store.put("k", b"two") is True
        assert store.get("k") == b"two"
        assert store.head("k").etag != before.etag

    def test_put_if_absent_overwrites_nothing(self, store: ObjectStore) -> None:
        assert store.put("a/k", b"first", if_absent=True) is True
        assert store.put("a/k", b"second", if_absent=True) is False
        assert store.put("a/k", b"first", if_absent=True) is False
        assert store.get("a/k") == b"first"

    def test_one_of_many_concurrent_if_absent_puts_wins(self, store: ObjectStore) -> None:
        start = threading.Barrier(8)

        def put(number: int) -> bool:
            start.wait()
            return store.put("claims/k", b"%d" % number, if_absent=True)

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(put, range(8)))
        assert won.count(True) == 1
        assert store.get("claims/k") == b"%d" % won.index(True)

    def test_reader_sees_whole_objects_while_they_are_overwritten(self, store: ObjectStore) -> None:
        versions = [bytes([number]) * 300_000 for number in range(4)]
        store.put("k", versions[0])
        with ThreadPoolExecutor(3) as readers:
            reads = [readers.submit(store.get, "k") for _ in range(40)]
            # One writer: the test server for S3 answers 500 when two overwrite one key at the same moment.
            for number in range(1, 40):
                assert store.put("k", versions[number % 4])
            assert all(read.result() in versions for read in reads)
        assert store.get("k") == versions[39 % 4]
        assert [info.key for info in store.list("")] == ["k"]

    def test_absent_object_is_not_found(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("a/b", b"")
        for key in ("x", "a", "a/x", "a/b/c"):
            with pytest.raises(ObjectNotFound, match=key) as raised:
                store.get(key)
            assert raised.value.retryable is False
            with pytest.raises(ObjectNotFound):
                store.head(key)
            with pytest.raises(ObjectNotFound):
                store.download(key, tmp_path / "file")
        assert list(tmp_path.iterdir()) == []

    def test_delete_removes_and_absent_is_fine(self, store: ObjectStore) -> None:
        store.put("a/k", b"x")
        store.delete("a/k")
        store.delete("a/k")
        store.delete("never/was")
        with pytest.raises(ObjectNotFound):
            store.get("a/k")
        assert list(store.list("")) == []

    def test_list_is_recursive_sorted_and_matches_head(self, store: ObjectStore) -> None:
        keys = ["a/1/x", "a-b", "a.b/c", "a0", "a/1", "b/a", "B", "é"]
        keys.remove("a/1")  # a directory cannot hold both a/1 and a/1/x
        for key in keys:
            store.put(key, key.encode())
        listed = list(store.list(""))
        assert [info.key for info in listed] == sorted(keys)
        assert listed == [store.head(key) for key in sorted(keys)]

    def test_prefix_ends_at_a_slash(self, store: ObjectStore) -> None:
        # A model named like the beginning of another must not load the other's files.
        for key in ("a/x", "a-hf/y", "ab", "b/a/x"):
            store.put(key, b"x")
        assert [info.key for info in store.list("a")] == ["a/x"]
        assert [info.key for info in store.list("a/")] == ["a/x"]
        assert store.list_children("a") == store.list_children("a/") == ["x"]

    def test_prefix_of_nothing_and_of_an_object_lists_nothing(self, store: ObjectStore) -> None:
        store.put("a/x", b"x")
        for prefix in ("nothing", "a/x", "a/x/y"):
            assert list(store.list(prefix)) == []
            assert store.list_children(prefix) == []

    def test_list_children_names_what_is_right_below(self, store: ObjectStore) -> None:
        for key in ("m/config.pbtxt", "m/1/model.onnx", "m/10/model.onnx", "m/2/a/b", "n/1/x", "top"):
            store.put(key, b"x")
        assert store.list_children("m") == ["1/", "10/", "2/", "config.pbtxt"]
        assert store.list_children("") == ["m/", "n/", "top"]

    def test_odd_keys_are_kept_exactly(self, store: ObjectStore) -> None:
        for key in ODD_KEYS:
            store.put(key, key.encode())
        assert [info.key for info in store.list("")] == sorted(ODD_KEYS)
        assert all(store.get(key) == key.encode() for key in ODD_KEYS)

    def test_bad_keys_are_refused(self, store: ObjectStore, tmp_path: Path) -> None:
        for key in BAD_KEYS:
            for call in (store.get, store.head, store.delete, partial(store.presign, expires_s=1)):
                with pytest.raises(KeyRefused, match="refused"):
                    call(key)
            for if_absent in (False, True):
                with pytest.raises(KeyRefused):
                    store.put(key, b"x", if_absent=if_absent)
            with pytest.raises(KeyRefused):
                store.download(key, tmp_path / "file")

    def test_bad_prefixes_are_refused_before_the_first_item(self, store: ObjectStore) -> None:
        for prefix in set(BAD_KEYS) - {"", "a/"}:
            with pytest.raises(KeyRefused):
                store.list(prefix)
            with pytest.raises(KeyRefused):
                store.list_children(prefix)

    def test_download_writes_the_file_and_tells_progress(self, store: ObjectStore, tmp_path: Path) -> None:
        data = bytes(range(256)) * 12_000
        store.put("m/1/model.onnx", data)
        told: list[int] = []
        path = tmp_path / "model.onnx"
        path.write_bytes(b"old")
        info = store.download("m/1/model.onnx", path, on_progress=told.append)
        assert info == store.head("m/1/model.onnx")
        assert path.read_bytes() == data
        assert told == sorted(set(told))
        assert told[-1] == len(data)
        assert len(told) > 1
        assert list(tmp_path.iterdir()) == [path]

    def test_download_of_an_empty_object(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("empty", b"")
        assert store.download("empty", tmp_path / "empty").size_bytes == 0
        assert (tmp_path / "empty").read_bytes() == b""

    def test_download_ended_by_its_progress_leaves_nothing(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("k", bytes(3_000_000))
        path = tmp_path / "file"
        path.write_bytes(b"old")

        def end(done_bytes: int) -> None:
            raise InterruptedError(done_bytes)

        with pytest.raises(InterruptedError):
            store.download("k", path, on_progress=end)
        assert list(tmp_path.iterdir()) == [path]
        assert path.read_bytes() == b"old"
        store.download("k", path)  # the store is as good as before
        assert path.stat().st_size == 3_000_000

    def test_download_into_a_missing_directory_is_the_callers_error(self, store: ObjectStore, tmp_path: Path) -> None:
        store.put("k", b"x")
        with pytest.raises(FileNotFoundError):
            store.download("k", tmp_path / "missing" / "file")

    def test_a_presigned_url_gives_the_object_to_anyone_where_there_is_one(self, store: ObjectStore) -> None:
        store.put("claims/ü x", b"0123456789")
        url = store.presign("claims/ü x", expires_s=60, content_type="application/octet-stream; length=3")
        if url is None:  # a directory
            return
        got = httpx.get(url, trust_env=False)
        assert (got.content, got.headers["content-type"]) == (b"0123456789", "application/octet-stream; length=3")
        part = httpx.get(url, headers={"range": "bytes=2-4"}, trust_env=False)
        assert (part.status_code, part.content) == (206, b"234")

    def test_url_opens_the_same_store(self, store: ObjectStore) -> None:
        store.put("a/k", b"x")
        assert open_store(store.url).get("a/k") == b"x"
        assert open_store(store.url + "/a").get("k") == b"x"
        assert open_store(store.url + "/").url == store.url
