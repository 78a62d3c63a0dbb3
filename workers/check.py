"""The command `check`: every fault of a model repository, found by reading its configurations and listing its files.

Must not know how findings are printed (check_report.py), nor import an ML library or load a model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import msgspec

from schemas.errors import InferenceError
from schemas.tensor import ITEM_BYTES
from store import ObjectStore, StoreError, open_store
from workers.check_report import print_report
from workers.config_pbtxt import ConfigReading, examine_config
from workers.model_config import BACKENDS, ModelConfig, ModelConfigError
from workers.repository_layout import (
    CONFIG_FILENAME,
    WARM_UP_DIRECTORY,
    decoded,
    is_model_name,
    model_filenames,
    versions_in,
)
from workers.settings import CheckSettings

_MODELS_AT_ONCE = 8  # each is a handful of small requests to the store
_WITHOUT_DESCRIPTION = ("device", "python")  # their model files do not tell inputs and outputs
_EXIT_UNREADABLE = 2


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong ("fault": something is not served), or that has no effect ("warning")."""

    severity: Literal["fault", "warning"]
    field: str
    value: str
    message: str
    remedy: str


class CheckedModel(msgspec.Struct, frozen=True):
    """A model's findings. `versions` are those that would be served; `backend` '' where it is not known."""

    name: str
    backend: str
    versions: tuple[str, ...]
    findings: tuple[Finding, ...]


class CheckedRepository(msgspec.Struct, frozen=True):
    """What was found, by model in the order of names. A repository without models is a fault by itself."""

    repository: str
    models: tuple[CheckedModel, ...]
    faults: int
    warnings: int


def check(settings: CheckSettings) -> int:
    """Print what was found; the exit code is 0 without a fault, 1 with one, 2 when the repository cannot be read."""
    try:
        report = check_repository(open_store(settings.repository))
    except StoreError as error:
        print(f"cannot read the repository: {error}", file=sys.stderr)
        return _EXIT_UNREADABLE
    print_report(report, as_json=settings.as_json)
    return 1 if report.faults else 0


def check_repository(store: ObjectStore) -> CheckedRepository:
    """Check all models of a store, several at once. Raises StoreError when the models cannot be listed."""
    names = [name[:-1] for name in store.list_children("") if name.endswith("/") and not name.startswith(".")]
    with ThreadPoolExecutor(_MODELS_AT_ONCE) as threads:
        models = tuple(threads.map(lambda name: check_model(store, name), sorted(names)))
    severities = [finding.severity for model in models for finding in model.findings]
    return CheckedRepository(
        repository=store.url,
        models=models,
        faults=severities.count("fault") or int(not models),
        warnings=severities.count("warning"),
    )


def check_model(store: ObjectStore, model: str) -> CheckedModel:
    """Check one model; what the store refuses is a fault of the model's."""
    if not is_model_name(model):
        remedy = "use 1 to 200 of A-Z a-z 0-9 . _ -, starting with a letter or digit, not ending in .high"
        return CheckedModel(model, "", (), (_fault("name", model, f"directory {model!r} can name no model", remedy),))
    try:
        children = store.list_children(f"{model}/")
        sizes = {info.key.removeprefix(f"{model}/"): info.size_bytes for info in store.list(f"{model}/")}
        raw = store.get(f"{model}/{CONFIG_FILENAME}") if CONFIG_FILENAME in children else b""
    except StoreError as error:
        remedy = "see that the files are there, and that their owner lets them be read"
        return CheckedModel(model, "", (), (_fault("model", model, f"cannot be read: {error}", remedy),))
    available = versions_in(children)
    reading = _reading(raw, model, sizes, max(available, default=0))
    config = reading.config
    served = config.version_policy.choose(available) if config else ()
    findings = [_of_error(error) for error in reading.faults]
    findings += _version_findings(config, children, available)
    if config:
        findings += _tensor_findings(config)
        for version in served:
            findings += _model_file_findings(config, version, sizes)
        findings += _warm_up_findings(config, sizes)
        findings += _label_findings(config, sizes)
    findings += [_warning(field, f"{field} is set and has no effect") for field in reading.ignored]
    return CheckedModel(model, config.backend if config else "", tuple(map(str, served)), tuple(findings))


def _reading(raw: bytes, model: str, sizes: Mapping[str, int], version: int) -> ConfigReading:
    files = {path.split("/")[1] for path in sizes if path.startswith(f"{version}/")}
    try:
        return examine_config(decoded(raw, model), model=model, files=sorted(files))
    except ModelConfigError as error:
        return ConfigReading(config=None, faults=(error,), ignored=())


def _version_findings(config: ModelConfig | None, children: list[str], available: set[int]) -> Iterator[Finding]:
    if not available:
        yield _fault("version", "", "has no version directory", "put the model's files in a directory called 1")
    for name in children:
        if name.endswith("/") and name[:-1].isdecimal() and not versions_in([name]):
            yield _warning("version", f"directory {name[:-1]!r} is no version: numbers are from 1, without leading 0")
    for version in config.version_policy.versions if config and available else ():
        if version >= 1 and version not in available:
            field = "version_policy.specific.versions"
            remedy = f"there are {', '.join(map(str, sorted(available)))}"
            yield _fault(field, str(version), f"version {version} of the version policy does not exist", remedy)


def _tensor_findings(config: ModelConfig) -> Iterator[Finding]:
    missing = [kind for kind, specs in (("input", config.inputs), ("output", config.outputs)) if not specs]
    if missing and config.backend in _WITHOUT_DESCRIPTION:
        what = f"says no {' and no '.join(missing)}, and the {config.backend} backend has no file that tells them"
        yield _fault(missing[0], "", what, f"give every {' and '.join(missing)}, with name, data_type and dims")
    elif missing and config.backend == "pytorch":
        yield _warning(missing[0], f"says no {' and no '.join(missing)}: PyTorch files need not tell them")


def _model_file_findings(config: ModelConfig, version: int, sizes: Mapping[str, int]) -> Iterator[Finding]:
    names = model_filenames(config) if config.backend in BACKENDS else ()
    # A model with weights in files of its own may come as a directory that holds a file of the same name.
    paths = [path for name in names for path in (f"{version}/{name}", f"{version}/{name}/{name}") if path in sizes]
    if config.backend == "python" and not paths:  # a module may be a package
        packages = tuple(f"{version}/{name.removesuffix('.py')}/" for name in names)
        paths = [path for path in sizes if path.startswith(packages) and path.endswith(".py") and sizes[path]]
    if names and not paths:
        there = sorted(path.removeprefix(f"{version}/") for path in sizes if path.startswith(f"{version}/"))
        yield _fault(
            "default_model_filename",
            config.default_model_filename,
            f"version {version} has no model file {' or '.join(names)}",
            f"there are {', '.join(there)}: rename one, or name it in default_model_filename"
            if there
            else f"put the file in {config.name}/{version}/",
        )
    for path in paths:
        if not sizes[path]:
            yield _fault("default_model_filename", path, f"model file {path} is empty", "copy it again")


def _warm_up_findings(config: ModelConfig, sizes: Mapping[str, int]) -> Iterator[Finding]:
    for sample in config.warm_ups:
        for tensor in sample.inputs:
            if tensor.source != "file" or not tensor.filename:
                continue
            path = f"{WARM_UP_DIRECTORY}/{tensor.filename}"
            field = f"model_warmup.{sample.name}.inputs.{tensor.name}.input_data_file"
            item_bytes = ITEM_BYTES.get(tensor.datatype, 0)
            row_bytes = math.prod(tensor.shape) * item_bytes
            if path not in sizes:
                yield _fault(field, tensor.filename, f"there is no warm-up file {path}", f"put it in {config.name}/")
            elif item_bytes and sizes[path] != row_bytes:
                what = f"warm-up file {path} has {sizes[path]} bytes, one row has {row_bytes}"
                yield _fault(field, tensor.filename, what, f"write {tensor.datatype} of shape {list(tensor.shape)}")


def _label_findings(config: ModelConfig, sizes: Mapping[str, int]) -> Iterator[Finding]:
    for output, filename in config.labels.items():
        if filename not in sizes:
            field = f"output.{output}.label_filename"
            yield _fault(field, filename, f"there is no label file {filename}", f"put it in {config.name}/")


def _of_error(error: InferenceError) -> Finding:
    return Finding("fault", error.field, error.value, error.message, error.remedy)


def _fault(field: str, value: str, message: str, remedy: str) -> Finding:
    return Finding("fault", field, value, message, remedy)


def _warning(field: str, message: str) -> Finding:
    return Finding("warning", field, "", message, "")
