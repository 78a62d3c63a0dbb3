"""The suite of tests/backend_contract.py on every form of model that is served."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import onnx
import pytest

from tests import models
from tests.backend_contract import BackendContract, Form, config_of
from workers.backend import Backend, open_backend
from workers.devices import gpus
from workers.placement import Placement

_NO_GPU = "needs a CUDA device, and there is none"
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not gpus(), reason=_NO_GPU)
_CODE = """
import numpy as np


class Model:
    def infer(self, batch):
        return BODY
"""
_BODIES = {
    "add_sub": '{"OUTPUT0": batch["INPUT0"] + batch["INPUT1"], "OUTPUT1": batch["INPUT0"] - batch["INPUT1"]}',
    "identity": '{"OUTPUT0": batch["INPUT0"]}',
    "vector": '{"OUTPUT0": batch["INPUT0"]}',
    "row_sum": '{"OUTPUT0": batch["INPUT0"].sum(1, keepdims=True)}',
    "picks": '{"OUTPUT0": np.take_along_axis(batch["INPUT0"], batch["INDEX"], 1)}',
    "huge": '{"OUTPUT0": np.zeros(int(batch["INPUT0"][0]), np.float32)}',
}


class OnnxForm(Form):
    backend, filename = "onnxruntime", "model.onnx"

    def write(self, directory: Path, model: str, datatype: str = "FP32") -> None:
        builders: dict[str, Callable[[], onnx.ModelProto]] = {
            "add_sub": models.add_sub,
            "identity": partial(models.identity, datatype),
            "vector": partial(models.identity, "FP32", (3,)),
            "row_sum": models.row_sum,
            "picks": models.picks,
            "huge": models.huge,
        }
        (directory / self.filename).write_bytes(builders[model]().SerializeToString())


class PythonForm(Form):
    backend, filename = "python", "model.py"
    lacks: ClassVar[dict[str, str]] = {"disagreement": "a class takes whatever it is given"}

    def write(self, directory: Path, model: str, datatype: str = "FP32") -> None:
        (directory / self.filename).write_text(_CODE.replace("BODY", _BODIES[model]))


class TorchForm(Form):
    """A form of PyTorch's; files are made once a session, by `make`, and copied."""

    backend = "pytorch"

    def __init__(self, made: Path) -> None:
        self._made = made

    def make(self, file: Path, model: str, datatype: str) -> None:
        raise NotImplementedError

    def write(self, directory: Path, model: str, datatype: str = "FP32") -> None:
        made = self._made / f"{type(self).__name__}-{model}-{datatype}"
        if not made.exists():
            part = made.with_suffix(".part")
            self.make(part, model, datatype)
            part.rename(made)
        shutil.copyfile(made, directory / self.filename)


class TorchScriptForm(TorchForm):
    filename = "model.pt"

    def make(self, file: Path, model: str, datatype: str) -> None:
        from tests import torch_models

        torch_models.write_torchscript(file, model)


class ExportedForm(TorchForm):
    filename = "model.pt2"
    lacks: ClassVar[dict[str, str]] = {"huge": "an exported program's sizes do not depend on its data"}

    def make(self, file: Path, model: str, datatype: str) -> None:
        from tests import torch_models

        torch_models.write_exported(file.with_suffix(".pt2"), model, datatype)
        file.with_suffix(".pt2").rename(file)


class CompiledForm(TorchForm):
    filename = "model.pt2"
    datatypes = ("FP32",)
    lacks: ClassVar[dict[str, str]] = dict.fromkeys(
        ("identity", "vector", "row_sum", "picks", "huge"), "compiling takes a minute: one model will do"
    )

    def make(self, file: Path, model: str, datatype: str) -> None:
        from tests import torch_models

        torch_models.write_compiled(file.with_suffix(".pt2"), model)
        file.with_suffix(".pt2").rename(file)


class DeviceForm(Form):
    """The simulated device has one input, and no file."""

    backend, filename = "device", ""
    lacks: ClassVar[dict[str, str]] = dict.fromkeys(
        ("add_sub", "picks", "row_sum", "huge", "disagreement"), "the simulated device is the identity"
    )

    def load(self, directory: Path, model: str, datatype: str = "FP32") -> Backend:
        if model in self.lacks:
            pytest.skip(self.lacks[model])
        backend = open_backend("device")
        backend.load(directory, config_of("device", model, datatype))
        return backend


class TensorRtForm(OnnxForm):
    """Engines are built from the ONNX models, on the spot."""

    backend = "tensorrt"
    placement = Placement("gpu", 0)
    datatypes = ("BF16", "BOOL", "FP16", "FP32", "INT32", "INT64", "INT8", "UINT8")
    lacks: ClassVar[dict[str, str]] = {
        "no rows": "TensorRT has no empty batches",
        "row_sum": "free dimensions need a profile",
        "picks": "TensorRT does not look at indices",
        "huge": "a shape that depends on data needs an allocator",
    }


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models that take time to make are kept for the session."""
    return tmp_path_factory.mktemp("models")


class TestOnnx(BackendContract):
    @pytest.fixture
    def form(self) -> Form:
        return OnnxForm()


class TestPython(BackendContract):
    @pytest.fixture
    def form(self) -> Form:
        return PythonForm()


class TestDevice(BackendContract):
    @pytest.fixture
    def form(self) -> Form:
        return DeviceForm()


class TestTorchScript(BackendContract):
    @pytest.fixture
    def form(self, made: Path) -> Form:
        return TorchScriptForm(made)


class TestExported(BackendContract):
    @pytest.fixture
    def form(self, made: Path) -> Form:
        return ExportedForm(made)


class TestCompiled(BackendContract):
    @pytest.fixture
    def form(self, compiled: Path) -> Form:
        return CompiledForm(compiled)


def _on_gpu(form: Callable[..., Form]) -> Callable[..., Form]:
    def make(*arguments: Path) -> Form:
        made = form(*arguments)
        made.placement = Placement("gpu", 0)
        return made

    return make


@gpu
@needs_gpu
class TestOnnxOnGpu(BackendContract):
    @pytest.fixture
    def form(self) -> Form:
        return _on_gpu(OnnxForm)()


@gpu
@needs_gpu
class TestTorchScriptOnGpu(BackendContract):
    @pytest.fixture
    def form(self, made: Path) -> Form:
        return _on_gpu(TorchScriptForm)(made)


@gpu
@needs_gpu
class TestExportedOnGpu(BackendContract):
    @pytest.fixture
    def form(self, made: Path) -> Form:
        return _on_gpu(ExportedForm)(made)


@gpu
@needs_gpu
class TestTensorRt(BackendContract):
    @pytest.fixture
    def form(self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Form:
        monkeypatch.setenv("TIDEGATE_ENGINE_CACHE", str(tmp_path_factory.mktemp("engines")))
        return TensorRtForm()
