"""The model repository, over a directory and over S3: what holds for both is written once."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelRef
from store import ObjectInfo, ObjectStore, StoreUnavailable, open_store
from tests import models
from workers.backend import open_backend
from workers.model_config import DEFAULT_MAX_BATCH_SIZE, ModelConfigError
from workers.repository import ModelRepository

EXPLICIT = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
"""


class Repository:
    """A repository to fill and to read."""

    def __init__(self, store: ObjectStore, *, base: Path, put_tree: Callable[[Path], None]) -> None:
        self.store = store
        self.source = base / "source"
        self.cache = base / "cache"
        self.source.mkdir(exist_ok=True)
        self.models = ModelRepository(store, cache=self.cache)
        self._put_tree = put_tree

    def add(self, name: str, *versions: int | str, config: str | None = None) -> None:
        for version in versions:
            directory = self.source / name / str(version)
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "model.onnx").write_bytes(models.identity().SerializeToString())
        if config is not None:
            (self.source / name).mkdir(exist_ok=True)
            (self.source / name / "config.pbtxt").write_text(config)
        self._put_tree(self.source)


@pytest.fixture
def s3(s3_bucket_url: str, tmp_path: Path) -> Repository:
    store = open_store(f"{s3_bucket_url}/models")

    def put_tree(source: Path) -> None:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                store.put(path.relative_to(source).as_posix(), path.read_bytes())

    return Repository(store, base=tmp_path, put_tree=put_tree)


@pytest.fixture
def directory(tmp_path: Path) -> Repository:
    return Repository(open_store(str(tmp_path / "source")), base=tmp_path, put_tree=lambda _: None)


@pytest.fixture(params=["directory", "s3"])
def repository(request: pytest.FixtureRequest) -> Repository:
    repository: Repository = request.getfixturevalue(request.param)
    return repository


def entries(cache: Path) -> list[str]:
    """What is kept of versions, and what is left of fetching them."""
    return [path.name for path in cache.iterdir() if path.name not in {".lock", "listings"}]


def failure(call: Callable[[], object]) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        call()
    return caught.value


def test_models_are_listed_by_name_without_what_can_be_none(repository: Repository) -> None:
    repository.add("b", 1)
    repository.add("a-hf", 1)
    repository.add("a", 1)
    repository.add(".git", 1)
    (repository.source / "README.md").write_text("not a model")
    repository.add("c.d_e", 1)
    assert repository.models.list_models() == ["a", "a-hf", "b", "c.d_e"]


def test_an_explicit_configuration_is_read_without_fetching(repository: Repository) -> None:
    repository.add("m", 1, config=EXPLICIT)
    model = repository.models.read("m")
    assert (model.versions, model.config_text, model.config.max_batch_size) == (("1",), EXPLICIT, 8)
    assert model.metadata.platform == "onnxruntime_onnx"
    assert not [path for path in repository.cache.rglob("*.onnx")]


def test_an_absent_configuration_is_completed_from_the_highest_version(repository: Repository) -> None:
    repository.add("m", 2, 10)
    model = repository.models.read("m")
    assert (model.versions, model.config_text) == (("10",), None)
    assert model.config.backend == "onnxruntime"
    assert model.config.max_batch_size == DEFAULT_MAX_BATCH_SIZE
    assert model.config.inputs[0].shape == (4,)


def test_versions_are_plain_numbers_in_numeric_order(repository: Repository) -> None:
    repository.add("m", 10, 9, 1, "01", "0", "latest", "2b", "-3", "²", config=EXPLICIT + "version_policy { all {} }")
    assert repository.models.read("m").versions == ("1", "9", "10")


def test_version_policy_chooses(repository: Repository) -> None:
    repository.add("m", 1, 2, 3, config=EXPLICIT + "version_policy { latest { num_versions: 2 } }")
    assert repository.models.read("m").versions == ("2", "3")
    repository.add("m", config=EXPLICIT + "version_policy { specific { versions: [7] } }")
    error = failure(lambda: repository.models.read("m"))
    assert (error.code, error.field) == (ErrorCode.MODEL_LOAD_FAILED, "version")


def test_a_model_without_versions_fails_to_load(repository: Repository) -> None:
    repository.add("m", config=EXPLICIT)
    assert failure(lambda: repository.models.read("m")).code is ErrorCode.MODEL_LOAD_FAILED


@pytest.mark.parametrize("name", ["absent", "a", "..", "a/b", "", "/etc", "x\x00", "a-hf/1"])
def test_what_is_not_there_is_not_found(repository: Repository, name: str) -> None:
    repository.add("a-hf", 1)
    assert failure(lambda: repository.models.read(name)).code is ErrorCode.MODEL_NOT_FOUND
    assert failure(lambda: repository.models.fetch(ModelRef(name, "1"))).code is ErrorCode.MODEL_NOT_FOUND


@pytest.mark.parametrize("version", ["2", "01", "../1", "latest", "1/", "¹"])
def test_a_version_that_is_not_there_is_not_found(repository: Repository, version: str) -> None:
    repository.add("m", 1)
    error = failure(lambda: repository.models.fetch(ModelRef("m", version)))
    assert (error.code, error.field) == (ErrorCode.MODEL_NOT_FOUND, "version")


def test_a_fetched_model_runs(repository: Repository) -> None:
    repository.add("m", 1, 3, config=EXPLICIT)
    backend = open_backend("onnxruntime")
    with repository.models.fetch(ModelRef("m")) as fetched:
        backend.load(fetched.path, repository.models.read("m").config)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(backend.infer({"INPUT0": x}, ())["OUTPUT0"], x)


def test_a_configuration_that_is_no_text_or_faulty_is_told(repository: Repository) -> None:
    repository.add("m", 1, config="max_batch_size: -1")
    assert isinstance(failure(lambda: repository.models.read("m")), ModelConfigError)
    (repository.source / "m" / "config.pbtxt").write_bytes(b"name: \xff")
    repository.add("m", 1)
    error = failure(lambda: repository.models.read("m"))
    assert isinstance(error, ModelConfigError)
    assert "UTF-8" in error.message


def test_a_directory_is_used_as_it_is(directory: Repository) -> None:
    directory.add("m", 1, 2)
    assert directory.models.fetch(ModelRef("m")).path == directory.source / "m" / "2"
    assert directory.models.fetch(ModelRef("m", "1")).path == directory.source / "m" / "1"
    assert not directory.cache.exists()


def test_a_link_out_of_the_directory_is_not_followed(directory: Repository, tmp_path: Path) -> None:
    directory.add("m", 1)
    outside = models.write_model(tmp_path / "outside", "m", models.identity())
    (directory.source / "m" / "2").symlink_to(outside)
    assert failure(lambda: directory.models.fetch(ModelRef("m", "2"))).code is ErrorCode.MODEL_NOT_FOUND


def test_a_missing_directory_is_unavailable_not_empty(tmp_path: Path) -> None:
    repository = ModelRepository(open_store(str(tmp_path / "absent")), cache=tmp_path / "cache")
    assert failure(repository.list_models).code is ErrorCode.UNAVAILABLE
    assert failure(lambda: repository.read("m")).code is ErrorCode.MODEL_LOAD_FAILED


def test_s3_files_are_downloaded_once_whole_and_with_progress(s3: Repository) -> None:
    s3.add("m", 1, 2)
    (s3.source / "m" / "2" / "weights").mkdir()
    (s3.source / "m" / "2" / "weights" / "a.bin").write_bytes(b"w" * 100_000)
    s3.add("m-hf", 2)
    told: list[tuple[int, int]] = []
    fetched = s3.models.fetch(ModelRef("m", "2"), on_progress=lambda done, total: told.append((done, total)))
    path = fetched.path
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert files == {
        "model.onnx": (s3.source / "m" / "2" / "model.onnx").read_bytes(),
        "weights/a.bin": b"w" * 100_000,
    }
    total = sum(map(len, files.values()))
    assert told[-1] == (total, total)
    assert told == sorted(told)
    assert len(told) >= 3

    again: list[tuple[int, int]] = []
    assert s3.models.fetch(ModelRef("m", "2"), on_progress=lambda *done: again.append(done)).path == path
    assert again == [(0, total), (total, total)]
    assert fetched.size_bytes == total
    assert entries(s3.cache) == [fetched.digest]


def test_changed_s3_objects_are_another_directory_and_the_old_one_stays(s3: Repository) -> None:
    s3.add("m", 1)
    before = s3.models.fetch(ModelRef("m")).path
    new = bytes((before / "model.onnx").stat().st_size)  # as long as the old one
    s3.store.put("m/1/model.onnx", new)
    after = s3.models.fetch(ModelRef("m")).path
    assert after != before
    assert (after / "model.onnx").read_bytes() == new
    assert (before / "model.onnx").read_bytes() != new


def test_an_interrupted_download_leaves_nothing_and_the_next_one_is_whole(s3: Repository) -> None:
    s3.add("m", 1)
    (s3.source / "m" / "1" / "z.bin").write_bytes(b"z" * 10)
    s3.add("m")

    class Interrupted(Exception):  # noqa: N818 - what happens, not an error of ours
        pass

    def interrupt(done: int, total: int) -> None:
        if done > total - 10:
            raise Interrupted

    with pytest.raises(Interrupted):
        s3.models.fetch(ModelRef("m"), on_progress=interrupt)
    assert entries(s3.cache) == []
    assert (s3.models.fetch(ModelRef("m")).path / "z.bin").read_bytes() == b"z" * 10


def test_an_object_replaced_after_its_version_was_listed_is_not_mixed_in(
    s3: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.add("m", 1)
    (s3.source / "m" / "1" / "z.bin").write_bytes(b"old")
    s3.add("m")
    listing = s3.store.list

    def list_then_replace(prefix: str) -> Iterator[ObjectInfo]:
        yield from listing(prefix)
        s3.store.put("m/1/z.bin", b"new")

    monkeypatch.setattr(s3.store, "list", list_then_replace)
    error = failure(lambda: s3.models.fetch(ModelRef("m")))
    assert error.code is ErrorCode.MODEL_LOAD_FAILED
    assert isinstance(error.__cause__, StoreUnavailable)
    assert entries(s3.cache) == []


def test_fetchers_at_the_same_time_end_with_one_whole_directory(s3: Repository) -> None:
    s3.add("m", 1)
    with ThreadPoolExecutor(8) as threads:
        digests = {version.digest for version in threads.map(lambda _: s3.models.fetch(ModelRef("m")), range(8))}
    assert entries(s3.cache) == [*digests]


def test_a_bucket_that_is_not_there_fails_to_load_with_its_cause(s3_server: str, tmp_path: Path) -> None:
    repository = ModelRepository(open_store("s3://no-such-bucket/models"), cache=tmp_path / "cache")
    error = failure(lambda: repository.read("m"))
    assert error.code is ErrorCode.MODEL_LOAD_FAILED
    assert error.__cause__ is not None


def test_a_full_or_missing_cache_disk_fails_to_load_with_its_cause(s3: Repository) -> None:
    s3.add("m", 1)
    s3.cache.write_text("a file where the directory should be")
    error = failure(lambda: s3.models.fetch(ModelRef("m")))
    assert error.code is ErrorCode.MODEL_LOAD_FAILED
    assert isinstance(error.__cause__, OSError)
