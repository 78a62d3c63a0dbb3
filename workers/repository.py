"""ModelRepository: the models in an object store, in Triton's layout, and a version's files on this machine's disk.

`<model>/config.pbtxt` and `<model>/<version>/<files>`; versions are numbers. Synchronous: callers use threads. Must not
know Kafka, S3, nor what a backend does with the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import msgspec
import structlog

from schemas.errors import ErrorCode, InferenceError
from schemas.model import ModelMetadata, ModelRef
from store import ObjectInfo, ObjectStore, StoreError
from workers.backend import describe_model
from workers.cache_entry import CacheEntry
from workers.config_pbtxt import read_config
from workers.listing import Listings
from workers.model_config import ModelConfig
from workers.node_cache import NodeCache, OnProgress
from workers.repository_layout import CONFIG_FILENAME, WARM_UP_DIRECTORY, decoded, is_model_name, versions_in

log = structlog.get_logger()

_MAX_LABEL_BYTES = 256 * 1024  # of a model's label files in all: they are announced in one record


class RepositoryModel(msgspec.Struct, frozen=True):
    """A model as the repository has it. `versions` are those to serve, ascending; `config_text` None: there is none.

    `labels`: by output, the names of its classes, of outputs whose label file is there. `fingerprint` names the state
    of the whole model (see ModelRepository.fingerprint), `fingerprints` that of each version: its files, the
    configuration and the labels.
    """

    config: ModelConfig
    versions: tuple[str, ...]
    config_text: str | None
    fingerprint: str = ""
    fingerprints: dict[str, str] = {}
    labels: dict[str, tuple[str, ...]] = {}

    @property
    def metadata(self) -> ModelMetadata:
        """What callers are told."""
        return self.config.metadata(self.versions)


class FetchedVersion:
    """A version's files on this machine's disk, kept there until it is closed.

    `path` is the version's directory, `warm_up_path` the model's directory of warm-up data, which need not exist.
    `digest` names the version's content: equal digests mean equal files. Leaving a `with` block closes.
    """

    def __init__(
        self, *, path: Path, warm_up_path: Path, size_bytes: int, digest: str, entries: Sequence[CacheEntry] = ()
    ) -> None:
        self.path = path
        self.warm_up_path = warm_up_path
        self.size_bytes = size_bytes
        self.digest = digest
        self._entries = entries

    def close(self) -> None:
        """Let the files go: from now on they may be evicted. Idempotent."""
        for entry in self._entries:
            entry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ModelRepository:
    """The models of one store. Safe to call from any number of threads.

    `cache` is a directory of this machine's disk, shared by its processes, where the files of a store are kept that is
    not itself a directory; `cache_bytes` is what it may hold, 0: all of the disk but for a tenth. While such a store
    is away, what it said last is used, so that all that is in the cache can be served.
    """

    def __init__(self, store: ObjectStore, *, cache: Path, cache_bytes: int = 0) -> None:
        self._store = store
        self._directory = _directory_of(store)
        self._listings = Listings(cache, store)
        self._cache = NodeCache(cache, store, budget_bytes=cache_bytes)

    def list_models(self) -> list[str]:
        """The names of all models, sorted; directories whose names can name no model are left out.

        Raises InferenceError(UNAVAILABLE) when the store cannot be read.
        """
        with _translated(f"cannot list the models of {self._store.url}", ErrorCode.UNAVAILABLE):
            children = self._listings.children("") if self._directory is None else self._store.list_children("")
        return sorted(name[:-1] for name in children if name.endswith("/") and is_model_name(name[:-1]))

    def read(
        self, model: str, *, without: Collection[str] = (), on_progress: OnProgress | None = None
    ) -> RepositoryModel:
        """The model's configuration and the versions to serve, as if those of `without` were not there.

        Where the configuration leaves out inputs or outputs, or there is none, the highest version is fetched and its
        file asked. Raises InferenceError(MODEL_NOT_FOUND), or InferenceError(MODEL_LOAD_FAILED) with cause: its
        subclass ModelConfigError for a configuration to correct.
        """
        files = self._files(model)
        text = self._config_text(model, files)
        available = {version for version in files.versions if str(version) not in without}
        highest = files.below(f"{max(available)}/") if available else []
        config = read_config(text or "", model=model, files=highest)
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
            with self.fetch(ModelRef(model, versions[-1]), on_progress=on_progress) as fetched:
                description = describe_model(config.backend, fetched.path, filename=config.default_model_filename)
            config = config.completed(description)
        labels = self._labels(model, config, files)
        fingerprints = {version: _digest([text, files.stamps(f"{version}/"), labels]) for version in versions}
        return RepositoryModel(config, versions, text, files.fingerprint(), fingerprints, labels)

    def fingerprint(self, model: str) -> str:
        """Names what the repository holds of a model now: another one means that configuration, versions or files
        differ. One listing of the model, nothing read; an object that was written again as it was changes nothing.

        Raises InferenceError(MODEL_NOT_FOUND), or MODEL_LOAD_FAILED with cause.
        """
        return self._files(model, is_fresh=True).fingerprint()

    def fetch(self, ref: ModelRef, *, on_progress: OnProgress | None = None) -> FetchedVersion:
        """All files of a version (the highest in the repository when `ref` names none) and of its model's warm-up.

        A directory store's own directories, nothing copied. Otherwise from the node cache, where nobody ever meets a
        part; only what is not there is downloaded. `on_progress` is told of the bytes in all before the first is
        fetched; what it raises ends the call. Raises InferenceError: MODEL_NOT_FOUND, or MODEL_LOAD_FAILED with its
        cause, a StoreError or OSError; then nothing is left behind.
        """
        files = self._files(ref.name)
        version = ref.version or str(max(files.versions, default=""))
        if version not in map(str, files.versions):
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"model {ref.name!r} has no version {version!r} in the repository",
                field="version",
                value=version,
                remedy=f"there are {', '.join(map(str, sorted(files.versions))) or 'none'}",
            )
        size_bytes = sum(info.size_bytes for info in files.objects_below(f"{version}/"))
        if on_progress is not None:
            on_progress(0, size_bytes)
        with _translated(f"cannot fetch model {ref.name!r} version {version}", ErrorCode.MODEL_LOAD_FAILED):
            if self._directory is not None:
                return _in_place(self._directory, ref.name, version, files)
            return self._fetched(ref.name, version, files, on_progress or _ignore_progress)

    def _fetched(self, model: str, version: str, files: _ModelFiles, on_progress: OnProgress) -> FetchedVersion:
        warm_up = files.objects_below(f"{WARM_UP_DIRECTORY}/")
        entry = self._cache.fetch(
            files.objects_below(f"{version}/"), prefix=f"{model}/{version}/", on_progress=on_progress
        )
        entries = [entry]
        try:
            if warm_up:
                prefix = f"{model}/{WARM_UP_DIRECTORY}/"
                entries.append(self._cache.fetch(warm_up, prefix=prefix, on_progress=_ignore_progress))
        except BaseException:
            entry.close()
            raise
        return FetchedVersion(
            path=entry.path,
            warm_up_path=entries[-1].path if warm_up else entry.path.parent / WARM_UP_DIRECTORY,
            size_bytes=entry.size_bytes,
            digest=entry.key,
            entries=entries,
        )

    def _config_text(self, model: str, files: _ModelFiles) -> str | None:
        config = files.named(CONFIG_FILENAME)
        if config is None:
            return None
        with _translated(f"cannot read the configuration of model {model!r}", ErrorCode.MODEL_LOAD_FAILED):
            return decoded(self._read(model, config), model)

    def _labels(self, model: str, config: ModelConfig, files: _ModelFiles) -> dict[str, tuple[str, ...]]:
        """The names of classes by output. A label file that is missing or too large is warned of and left out."""
        labels: dict[str, tuple[str, ...]] = {}
        room_bytes = _MAX_LABEL_BYTES
        for output, filename in config.labels.items():
            info = files.named(filename)
            if info is None or info.size_bytes > room_bytes:
                reason = "it is not there" if info is None else f"label files may have {_MAX_LABEL_BYTES} bytes in all"
                log.warning("leave_labels_out", model=model, output=output, file=filename, reason=reason)
                continue
            room_bytes -= info.size_bytes
            with _translated(f"cannot read {filename!r} of model {model!r}", ErrorCode.MODEL_LOAD_FAILED):
                text = self._read(model, info).decode(errors="replace")
            labels[output] = tuple(text.splitlines())
        return labels

    def _read(self, model: str, info: ObjectInfo) -> bytes:
        """A small file right in a model's directory."""
        if self._directory is not None:
            return self._store.get(info.key)
        with closing(self._cache.fetch([info], prefix=f"{model}/", on_progress=_ignore_progress)) as entry:
            return (entry.path / info.key.removeprefix(f"{model}/")).read_bytes()

    def _files(self, model: str, *, is_fresh: bool = False) -> _ModelFiles:
        """What there is of a model; `is_fresh`: now, whatever was known. Raises InferenceError(MODEL_NOT_FOUND)."""
        objects: list[ObjectInfo] = []
        children: list[str] = []
        if is_model_name(model):
            with _translated(f"cannot read model {model!r}", ErrorCode.MODEL_LOAD_FAILED):
                if self._directory is None:
                    objects = list(self._store.list(f"{model}/")) if is_fresh else self._listings.objects(f"{model}/")
                else:
                    # Some backends need no file: a version may be an empty directory, which no list of objects shows.
                    children = self._store.list_children(f"{model}/")
                    objects = list(self._store.list(f"{model}/")) if children else []
        files = _ModelFiles(f"{model}/", objects, children)
        if not objects and not children:
            raise InferenceError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no model {model!r} in {self._store.url}",
                field="model",
                value=model,
                remedy=f"put it in {model}/1/ there, or ask for another",
            )
        return files


class _ModelFiles:
    """The objects below a model's prefix, sorted by key, and its empty directories."""

    def __init__(self, prefix: str, objects: list[ObjectInfo], children: list[str]) -> None:
        self._prefix = prefix
        self.objects = objects
        names = {f"{first}/" for first, slash, _ in (self._name(info).partition("/") for info in objects) if slash}
        names.update(children)
        self.versions = versions_in(names)

    def named(self, filename: str) -> ObjectInfo | None:
        """The object of this name in the model's directory."""
        return next((info for info in self.objects if info.key == self._prefix + filename), None)

    def objects_below(self, directory: str) -> list[ObjectInfo]:
        """The objects in a directory of the model ('1/')."""
        return [info for info in self.objects if info.key.startswith(self._prefix + directory)]

    def fingerprint(self) -> str:
        """Names the state of the whole model."""
        return _digest([sorted(self.versions), self.stamps("")])

    def stamps(self, directory: str) -> list[tuple[str, int, str]]:
        """What tells one state of a directory's objects from another; '' is the whole model."""
        return [(info.key, info.size_bytes, info.etag) for info in self.objects_below(directory)]

    def below(self, directory: str) -> list[str]:
        """The names right in a directory of the model."""
        paths = (self._name(info).removeprefix(directory) for info in self.objects_below(directory))
        return sorted({path.partition("/")[0] for path in paths})

    def _name(self, info: ObjectInfo) -> str:
        return info.key.removeprefix(self._prefix)


def _digest(told: object) -> str:
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()


def _directory_of(store: ObjectStore) -> Path | None:
    """The directory of a store that is one."""
    path = unquote(store.url.removeprefix("file://"))
    return Path(path) if store.url.startswith("file://") else None


def _in_place(root: Path, model: str, version: str, files: _ModelFiles) -> FetchedVersion:
    """A version in the directory that is the repository."""
    path = root / model / version
    objects = files.objects_below(f"{version}/")
    told = [(info.key, info.size_bytes, (root / info.key).stat().st_mtime_ns) for info in objects]
    return FetchedVersion(
        path=path,
        warm_up_path=root / model / WARM_UP_DIRECTORY,
        size_bytes=sum(info.size_bytes for info in objects),
        digest=hashlib.sha256(msgspec.json.encode(told)).hexdigest(),
    )


def _ignore_progress(done_bytes: int, total_bytes: int) -> None:
    """Nobody asked."""


@contextmanager
def _translated(doing: str, code: ErrorCode) -> Iterator[None]:
    """Turn the store's and the disk's errors into ours."""
    try:
        yield
    except (StoreError, OSError) as cause:
        raise InferenceError(code, f"{doing}: {cause}") from cause
