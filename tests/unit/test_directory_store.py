"""The directory store: the contract of all stores, and what only files can do wrong."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import KeyRefused, ObjectNotFound, StoreDenied, StoreError, StoreUnavailable, StoreUrlError, open_store
from store.directory import DirectoryStore
from store.object_store import TEMPORARY_PREFIX
from tests.store_contract import StoreContract

needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="root passes every permission")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # Not tmp_path itself: the contract downloads there.
    return tmp_path.parent / f"{tmp_path.name}-store" / "made by put"


@pytest.fixture
def directory(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


class TestDirectoryStore(StoreContract):
    @pytest.fixture
    def store(self, directory: DirectoryStore) -> DirectoryStore:
        return directory


SEGMENT = st.text("ab-./é0", min_size=1, max_size=3)
KEYS = st.lists(st.lists(SEGMENT, min_size=1, max_size=3).map("/".join), max_size=8)


@settings(max_examples=60, deadline=None)
@given(keys=KEYS, prefix=st.sampled_from(["", "a", "a/", "a/b", "-"]))
def test_listing_is_what_was_put_and_not_refused(keys: list[str], prefix: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        store, kept = DirectoryStore(Path(root)), set()
        for key in keys:
            try:
                store.put(key, b"")
            except StoreError:
                continue
            kept.add(key)
        below = prefix.removesuffix("/") + "/" if prefix else ""
        expected = sorted(key for key in kept if key.startswith(below))
        assert [info.key for info in store.list(prefix)] == expected
        children = {key[len(below) :].partition("/")[0] + "/" * ("/" in key[len(below) :]) for key in expected}
        assert store.list_children(prefix) == sorted(children)


def test_missing_root_is_no_empty_store(directory: DirectoryStore) -> None:
    with pytest.raises(StoreUnavailable, match="make or mount"):
        list(directory.list(""))
    with pytest.raises(StoreUnavailable):
        directory.list_children("models")
    with pytest.raises(ObjectNotFound):
        directory.get("a")


def test_key_below_an_object_is_an_error_that_changes_nothing(directory: DirectoryStore) -> None:
    directory.put("a", b"x")
    directory.put("d/e", b"x")
    for key in ("a/b", "a/b/c", "d"):
        for if_absent in (False, True):
            with pytest.raises(StoreError) as raised:
                directory.put(key, b"y", if_absent=if_absent)
            assert not raised.value.retryable
            assert raised.value.__cause__ is not None
    assert {info.key: directory.get(info.key) for info in directory.list("")} == {"a": b"x", "d/e": b"x"}


def test_link_out_of_the_root_is_refused(directory: DirectoryStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    directory.put("a/k", b"x")
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    (root / "beside").symlink_to(f"{root}-hf")  # begins like the root, but is another directory
    for key in ("file", "out/secret", "beside/k"):
        with pytest.raises(KeyRefused, match="leads it out"):
            directory.get(key)
        with pytest.raises(KeyRefused):
            directory.head(key)
        with pytest.raises(KeyRefused):
            directory.download(key, tmp_path / "copy")
    with pytest.raises(KeyRefused):
        directory.put("out/new", b"x")
    with pytest.raises(KeyRefused):
        directory.delete("out/secret")
    with pytest.raises(KeyRefused):
        list(directory.list("out"))
    assert [info.key for info in directory.list("")] == ["a/k"]
    assert directory.list_children("") == ["a/"]
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_put_replaces_a_link_and_not_its_target(directory: DirectoryStore, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"s")
    root.mkdir(parents=True)
    (root / "file").symlink_to(tmp_path / "secret")
    directory.put("file", b"x")
    assert directory.get("file") == b"x"
    assert (tmp_path / "secret").read_bytes() == b"s"


def test_links_inside_the_root_are_followed_and_loops_end(directory: DirectoryStore, root: Path) -> None:
    # A mounted ConfigMap is made of such links.
    directory.put("..data/m/config.pbtxt", b"x")
    directory.put("a/k", b"x")
    (root / "m").symlink_to("..data/m")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to("self")
    assert directory.get("m/config.pbtxt") == b"x"
    assert "m/config.pbtxt" in [info.key for info in directory.list("")]
    assert [info.key for info in directory.list("m")] == ["m/config.pbtxt"]
    assert next(directory.list("a")).key == "a/k"


def test_links_between_two_directories_end(directory: DirectoryStore, root: Path) -> None:
    directory.put("a/k", b"x")
    directory.put("b/k", b"x")
    (root / "a" / "to-b").symlink_to("../b")
    (root / "b" / "to-a").symlink_to("../a")
    assert [info.key for info in directory.list("")] == ["a/k", "a/to-b/k", "b/k", "b/to-a/k"]


def test_named_pipe_is_no_object_and_nobody_waits_for_it(directory: DirectoryStore, root: Path) -> None:
    directory.put("k", b"x")
    os.mkfifo(root / "pipe")
    for call in (directory.get, directory.head):
        with pytest.raises(ObjectNotFound):
            call("pipe")
    assert [info.key for info in directory.list("")] == ["k"]


def test_name_too_long_for_the_file_system_is_refused(directory: DirectoryStore) -> None:
    with pytest.raises(KeyRefused, match="too long"):
        directory.put("k" * 256, b"x")
    with pytest.raises(KeyRefused):
        directory.get("k" * 256)


def test_writer_killed_before_publishing_leaves_no_object(directory: DirectoryStore, root: Path) -> None:
    directory.put("a/k", b"old")
    script = (
        "import os, signal, sys\n"
        "import store.directory\n"
        "store.directory.publish = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.directory.DirectoryStore(sys.argv[1]).put('a/k', bytes(100_000))\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    left = [path for path in (root / "a").iterdir() if path.name != "k"]
    assert [path.name.startswith(TEMPORARY_PREFIX) for path in left] == [True]
    assert directory.get("a/k") == b"old"
    assert [info.key for info in directory.list("")] == ["a/k"]
    assert directory.list_children("a") == ["k"]
    assert directory.sweep() == 0  # it may still be at work
    assert directory.sweep(older_than_s=-1) == 1
    assert not left[0].exists()
    assert directory.get("a/k") == b"old"


def test_write_that_fails_halfway_leaves_the_old_object(directory: DirectoryStore, root: Path) -> None:
    directory.put("a/k", b"old")
    script = (
        "import resource, signal, sys\n"
        "from store.directory import DirectoryStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"  # a short write, then an error
        "DirectoryStore(sys.argv[1]).put('a/k', bytes(100_000))\n"
    )
    failed = subprocess.run([sys.executable, "-c", script, str(root)], check=False, capture_output=True, text=True)
    assert "StoreError: cannot write 'a/k': File too large" in failed.stderr
    assert [path.name for path in (root / "a").iterdir()] == ["k"]
    assert directory.get("a/k") == b"old"


def test_full_disk_is_worth_another_try(directory: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.put("a/k", b"old")

    def full(file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StoreUnavailable, match="No space left") as raised:
            directory.put("a/k", b"new")
    assert raised.value.retryable
    assert [path.name for path in (root / "a").iterdir()] == ["k"]
    assert directory.get("a/k") == b"old"


def test_object_changed_in_place_while_downloaded_is_not_published(
    directory: DirectoryStore, root: Path, tmp_path: Path
) -> None:
    def truncate(done_bytes: int) -> None:
        os.truncate(root / "k", 1_500_000)

    def overwrite(done_bytes: int) -> None:
        (root / "k").write_bytes(b"\1" * 3_000_000)

    for change in (truncate, overwrite):
        directory.put("k", bytes(3_000_000))
        with pytest.raises(StoreUnavailable, match="changed while it was read"):
            directory.download("k", tmp_path / "file", on_progress=change)
        assert list(tmp_path.iterdir()) == []


@needs_user
def test_permission_is_denied(directory: DirectoryStore, root: Path) -> None:
    directory.put("a/k", b"x")
    (root / "a" / "k").chmod(0)
    with pytest.raises(StoreDenied):
        directory.get("a/k")


def test_urls_open_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(str(tmp_path)).put("a b/k", b"x")
    assert open_store(f"file://{tmp_path}/a%20b").get("k") == b"x"
    monkeypatch.chdir(tmp_path)
    assert open_store("a b").get("k") == b"x"
    assert open_store("./a b").url == (tmp_path / "a b").as_uri()


@pytest.mark.parametrize(
    "url",
    ["", "a\0b", "http://host/x", "file://host/x", "file:x", "s3:bucket", "s3://", "s3:///x", "s3://k:s@b/x", "s3://b//x",
     "s3://b/../x", "gs://b"],
)  # fmt: skip
def test_bad_url_is_named_with_its_remedy(url: str) -> None:
    with pytest.raises(StoreUrlError, match="give ") as raised:
        open_store(url)
    assert repr(url)[1:5] in str(raised.value)


def test_boto3_is_imported_only_for_s3() -> None:
    script = (
        "import sys, store\n"
        "store.open_store('/tmp/x')\n"
        "assert not {'boto3', 'botocore', 'urllib3'} & set(sys.modules), sorted(sys.modules)\n"
        "store.open_store('s3://bucket/x')\n"
        "assert 'boto3' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_missing_boto3_is_named_with_its_remedy() -> None:
    script = "import sys, store\nsys.modules['boto3'] = None\nstore.open_store('s3://bucket/x')"
    failed = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert "StoreUrlError: store url 's3://bucket/x' needs boto3" in failed.stderr
