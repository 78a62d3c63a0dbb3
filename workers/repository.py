"""ModelRepository: the models in an object store, in Triton's layout, and a version's files on this machine's disk.

`<model>/config.pbtxt` and `<model>/<version>/<files>`; versions are numbers. Synchronous: callers use threads. Must not
know Kafka, S3, nor what a backend does with the files.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import msgspec

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, ModelRef
from schemas.topics import check_model_name
from store import ObjectInfo, ObjectStore, StoreError
from workers.backend import describe_model
from workers.config_pbtxt import read_config
from workers.model_config import ModelConfig, ModelConfigError

_CONFIG_FILENAME = "config.pbtxt"
_VERSION = re.compile(r"[1-9][0-9]*")  # Triton's rule: a leading 0, or anything but digits, is no version
_FETCHING_PREFIX = ".fetching-"

# Called with the bytes that are here and the bytes in all.
OnProgress = Callable[[int, int], None]


class RepositoryModel(msgspec.Struct, frozen=True):
    """A model as the repository has it. `versions` are those to serve, ascending; `config_text` None: there is none."""

    config: ModelConfig
    versions: tuple[str, ...]
    config_text: str | None

    @property
    def metadata(self) -> ModelMetadata:
        """What callers are told."""
        return self.config.metadata(self.versions)


class ModelRepository:
    """The models of one store. `cache` is a directory of this machine where versions are kept that the store has not
    on this machine's disk itself. Safe to call from any number of threads.
    """

    def __init__(self, store: ObjectStore, *, cache: Path) -> None:
        self._store = store
        self._cache = cache

    def list_models(self) -> list[str]:
        """The names of all models, sorted; directories whose names can name no model are left out.

        Raises InferenceError(UNAVAILABLE) when the store cannot be read.
        """
        with _translated(f"cannot list the models of {self._store.url}", ErrorCode.UNAVAILABLE):
            children = self._store.list_children("")
        return sorted(name[:-1] for name in children if name.endswith("/") and _is_model_name(name[:-1]))

    def read(self, model: str, *, on_progress: OnProgress | None = None) -> RepositoryModel:
        """The model's configuration and the versions to serve.

        Where the configuration leaves out inputs or outputs, or there is none, the highest version is fetched and its
        file asked. Raises InferenceError(MODEL_NOT_FOUND), or InferenceError(MODEL_LOAD_FAILED) with cause: its
        subclass ModelConfigError for a configuration to correct.
        """
        children = self._children(model)
        with _translated(f"cannot read the configuration of model {model!r}", ErrorCode.MODEL_LOAD_FAILED):
            raw = self._store.get(f"{model}/{_CONFIG_FILENAME}") if _CONFIG_FILENAME in children else None
        text = None if raw is None else _decoded(raw, model)
        available = _versions_in(children)
        with _translated(f"cannot list the files of model {model!r}", ErrorCode.MODEL_LOAD_FAILED):
            files = self._store.list_children(f"{model}/{max(available)}/") if available else []
        config = read_config(text or "", model=model, files=[name.removesuffix("/") for name in files])
        versions = tuple(str(version) for version in config.version_policy.choose(available))
        if not versions:
            raise InferenceError(
                ErrorCode.MODEL_LOAD_FAILED,
                f"model {model!r} has no version to serve",
                field="version",
                value=sorted(available),
                remedy=f"put the files in {model}/1/, and see that version_policy names a version that exists",
            )
        if not config.is_complete:
            path = self.fetch(ModelRef(model, versions[-1]), on_progress=on_progress)
            config = config.completed(describe_model(config.backend, path, filename=config.default_model_filename))
        return RepositoryModel(config=config, versions=versions, config_text=text)

    def fetch(self, ref: ModelRef, *, on_progress: OnProgress | None = None) -> Path:
        """A local directory with all files of a version (the highest in the repository when `ref` names none).

        A directory store's own directory, nothing copied. Otherwise one in the cache whose name follows from the
        objects' addresses and etags: it is downloaded beside, and renamed once whole, so that nobody ever meets a part.
        What `on_progress` raises ends the download. Raises InferenceError(MODEL_NOT_FOUND), or MODEL_LOAD_FAILED with
        cause; then nothing is left behind.
        """
        available = _versions_in(self._children(ref.name))
        version = ref.version or str(max(available, default=""))
        if version not in map(str, available):
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"model {ref.name!r} has no version {version!r} in the repository",
                field="version",
                value=version,
                remedy=f"there are {', '.join(map(str, sorted(available))) or 'none'}",
            )
        if self._store.url.startswith("file://"):
            return Path(unquote(self._store.url.removeprefix("file://"))) / ref.name / version
        with _translated(f"cannot fetch model {ref.name!r} version {version}", ErrorCode.MODEL_LOAD_FAILED):
            return self._fetched(f"{ref.name}/{version}/", on_progress or _ignore_progress)

    def _children(self, model: str) -> list[str]:
        """The names right below the model. Raises InferenceError(MODEL_NOT_FOUND) when there are none."""
        children: list[str] = []
        if _is_model_name(model):
            with _translated(f"cannot read model {model!r}", ErrorCode.MODEL_LOAD_FAILED):
                children = self._store.list_children(f"{model}/")
        if not children:
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no model {model!r} in {self._store.url}",
                field="model",
                value=model,
                remedy=f"put it in {model}/1/ there, or ask for another",
            )
        return children

    def _fetched(self, prefix: str, on_progress: OnProgress) -> Path:
        objects = list(self._store.list(prefix))
        if not objects:
            raise StoreError(f"there are no objects below {prefix!r}")
        total_bytes = sum(info.size_bytes for info in objects)
        target = self._cache / _digest(self._store.url, objects)
        if not target.is_dir():
            self._cache.mkdir(parents=True, exist_ok=True)
            beside = self._cache / f"{_FETCHING_PREFIX}{secrets.token_hex(8)}"
            try:
                self._download(objects, prefix, beside, on_progress)
                _publish(beside, target)
            finally:
                shutil.rmtree(beside, ignore_errors=True)  # gone already when it was published
        on_progress(total_bytes, total_bytes)
        return target

    def _download(self, objects: list[ObjectInfo], prefix: str, beside: Path, on_progress: OnProgress) -> None:
        total_bytes = sum(info.size_bytes for info in objects)
        before_bytes = 0
        for info in objects:
            path = beside / info.key.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            got = self._store.download(info.key, path, on_progress=_Share(before_bytes, total_bytes, on_progress))
            if got.etag != info.etag:
                raise StoreError(f"object {info.key!r} was replaced while its version was fetched")
            before_bytes += info.size_bytes


class _Share(msgspec.Struct, frozen=True):
    """Tells of one object's bytes as a part of all."""

    before_bytes: int
    total_bytes: int
    on_progress: OnProgress

    def __call__(self, done_bytes: int) -> None:
        self.on_progress(self.before_bytes + done_bytes, self.total_bytes)


def _publish(beside: Path, target: Path) -> None:
    try:
        os.rename(beside, target)
    except OSError:
        if not target.is_dir():
            raise
        # Another thread or process was first, with the same objects.


def _digest(url: str, objects: list[ObjectInfo]) -> str:
    """What the objects are: addresses, sizes and etags. Not etags alone, for not every server's are of the content."""
    names = msgspec.json.encode([url, [(info.key, info.size_bytes, info.etag) for info in objects]])
    return hashlib.sha256(names).hexdigest()


def _versions_in(children: list[str]) -> set[int]:
    return {int(name[:-1]) for name in children if name.endswith("/") and _VERSION.fullmatch(name[:-1])}


def _is_model_name(name: str) -> bool:
    try:
        check_model_name(name)
    except InferenceError:
        return False
    return True


def _decoded(raw: bytes, model: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as cause:
        raise ModelConfigError(
            f"{_CONFIG_FILENAME} of model {model!r} is not UTF-8 text: {cause}",
            field=_CONFIG_FILENAME,
            value=f"byte {cause.start}",
            remedy="save it as UTF-8",
        ) from cause


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Nobody asked."""


@contextmanager
def _translated(doing: str, code: ErrorCode) -> Iterator[None]:
    """Turn the store's and the disk's errors into ours."""
    try:
        yield
    except (StoreError, OSError) as cause:
        raise InferenceError(code, f"{doing}: {cause}") from cause
