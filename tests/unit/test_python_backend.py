import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from workers.backend import Backend, OutOfMemory, TransientError, describe_model, open_backend
from workers.model_config import ModelConfig, ModelConfigError
from workers.placement import Placement

_X = np.ones((1, 2), np.float32)


def config(datatype: str = "FP32", *, filename: str = "", **parameters: str) -> ModelConfig:
    return ModelConfig(
        "m",
        "python",
        max_batch_size=8,
        inputs=(TensorSpec("x", datatype, (2,)),),
        outputs=(TensorSpec("y", datatype, (2,)), TensorSpec("z", datatype, (2,))),
        default_model_filename=filename,
        parameters=parameters,
    )


def load(directory: Path, code: str, datatype: str = "FP32", placement: Placement | None = None) -> Backend:
    (directory / "model.py").write_text(code)
    backend = open_backend("python")
    backend.load(directory, config(datatype), placement or Placement())
    return backend


def infers(body: str) -> str:
    return f"""
import numpy as np
from workers.backend import OutOfMemory, TransientError
from schemas.errors import ErrorCode, InferenceError


class Model:
    def infer(self, batch):
        x = batch["x"]
        {body}
"""


def test_load_is_told_everything_and_unload_is_called_once(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("""
from pathlib import Path


class Net:
    def load(self, context):
        self.path = context.path
        (context.path / "told").write_text(repr((context.name, context.parameters["k"], context.device,
                                                 context.threads, context.config.max_batch_size)))

    def infer(self, batch):
        return {"y": batch["x"], "z": batch["x"]}

    def unload(self):
        with (self.path / "unloaded").open("a") as file:
            file.write("once")
""")
    backend = open_backend("python")
    backend.load(tmp_path, config(**{"class": "net:Net", "k": "v"}), Placement("gpu", 2, 3))
    assert (tmp_path / "told").read_text() == "('m', 'v', 'cuda:2', 3, 8)"
    backend.unload()
    backend.unload()
    assert (tmp_path / "unloaded").read_text() == "once"


def test_the_file_name_of_the_configuration_names_the_module(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(infers('return {"y": x, "z": x}'))
    backend = open_backend("python")
    backend.load(tmp_path, config(filename="other.py"))
    np.testing.assert_array_equal(backend.infer({"x": _X}, ("y",))["y"], _X)


def test_modules_of_the_same_names_belong_to_their_own_version(tmp_path: Path) -> None:
    backends = []
    for version in ("1", "2"):
        directory = tmp_path / version
        (directory / "parts").mkdir(parents=True)
        (directory / "parts" / "__init__.py").write_text("from parts.deep import FACTOR")
        (directory / "parts" / "deep.py").write_text(f"FACTOR = {version}")
        backends.append(load(directory, "import parts" + infers('return {"y": x * parts.FACTOR, "z": x}')))
    results = [backend.infer({"x": _X}, ())["y"][0, 0] for backend in backends]
    assert results == [1, 2]


def test_loading_leaves_no_trace_in_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "helpers_of_model.py").write_text("VALUE = 1")
    sys.modules["helpers_of_model"] = another = ModuleType("helpers_of_model")
    try:
        before = (list(sys.path), set(sys.modules), sys.dont_write_bytecode)
        code = "import helpers_of_model\nassert helpers_of_model.VALUE == 1\n" + infers('return {"y": x, "z": x}')
        load(tmp_path, code)
        with pytest.raises(InferenceError):
            load(tmp_path, "import helpers_of_model\nraise ValueError('no')")
        assert (list(sys.path), set(sys.modules), sys.dont_write_bytecode) == before
        assert sys.modules["helpers_of_model"] is another
        assert "model" not in sys.modules
    finally:
        del sys.modules["helpers_of_model"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["helpers_of_model.py", "model.py"]


def test_versions_that_load_at_once_do_not_mix(tmp_path: Path) -> None:
    together = threading.Barrier(6)
    for version in range(6):
        (tmp_path / str(version)).mkdir()
        (tmp_path / str(version) / "which.py").write_text(f"VERSION = {version}")

    def work(version: int) -> float:
        together.wait()
        backend = load(tmp_path / str(version), "import which\n" + infers('return {"y": x * which.VERSION, "z": x}'))
        return float(backend.infer({"x": _X}, ())["y"][0, 0])

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == list(range(6))


@pytest.mark.parametrize("name", ["json", "workers", "queue"])
def test_a_file_that_would_hide_a_module_of_everyones_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("")
    with pytest.raises(ModelConfigError, match=name):
        load(tmp_path, infers("pass"))


@pytest.mark.parametrize("text", ["model", ":Model", "model:", "os.path;x:Model", "../model:Model", "model:Mo del"])
def test_a_name_that_is_no_module_and_class_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError) as caught:
        open_backend("python").load(tmp_path, config(**{"class": text}))
    assert caught.value.field == "parameters.class"


@pytest.mark.parametrize("code", ["class Other:\n    pass", "class Model:\n    pass", "def Model():\n    pass"])
def test_a_class_that_is_not_there_or_cannot_infer_is_refused(code: str, tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="Model"):
        load(tmp_path, code)


@pytest.mark.parametrize(
    "code",
    ["raise ValueError('broken')", "import sys; sys.exit(3)", "class Model:\n    def load(self, context): 1 / 0"],
)
def test_code_that_fails_to_load_says_why(code: str, tmp_path: Path) -> None:
    code = code if "class" not in code else code + "\n    def infer(self, batch): pass"
    with pytest.raises(InferenceError) as caught:
        load(tmp_path, code)
    assert caught.value.code is ErrorCode.MODEL_LOAD_FAILED
    assert caught.value.__cause__ is not None


def test_no_memory_for_loading_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory):
        load(tmp_path, "raise MemoryError")


@pytest.mark.parametrize("body", ["1 / 0", "raise SystemExit(1)", "x += 1"])
def test_what_the_class_raises_is_model_failed_with_its_cause(body: str, tmp_path: Path) -> None:
    backend = load(tmp_path, infers(body))
    with pytest.raises(InferenceError) as caught:
        backend.infer({"x": _X}, ())
    assert caught.value.code is ErrorCode.MODEL_FAILED
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("body", "kind", "code"),
    [
        ('raise OutOfMemory("full")', OutOfMemory, ErrorCode.MODEL_FAILED),
        ('raise RuntimeError("CUDA out of memory")', OutOfMemory, ErrorCode.MODEL_FAILED),
        ('raise TransientError("the other service is away")', TransientError, ErrorCode.UNAVAILABLE),
        ('raise InferenceError(ErrorCode.INVALID_REQUEST, "no")', InferenceError, ErrorCode.INVALID_REQUEST),
    ],
)
def test_the_class_may_say_what_kind_of_failure_it_is(
    body: str, kind: type[InferenceError], code: ErrorCode, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        load(tmp_path, infers(body)).infer({"x": _X}, ())
    assert caught.value.code is code
    assert caught.value.code.retryable is (kind is TransientError)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return x", "ndarray"),
        ("return None", "NoneType"),
        ('return {"y": x}', "no 'z', but y"),
        ('return {"y": x, "z": [[1.0, 2.0]]}', "list as 'z'"),
        ('return {"y": x, "z": x.astype(np.float64)}', "float64 as 'z'"),
    ],
)
def test_a_result_of_the_wrong_type_is_said_clearly(body: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(InferenceError, match=what) as caught:
        load(tmp_path, infers(body)).infer({"x": _X}, ())
    assert caught.value.code is ErrorCode.MODEL_FAILED
    assert caught.value.remedy


def test_outputs_are_copies_of_what_the_class_keeps_and_gives(tmp_path: Path) -> None:
    backend = load(tmp_path, infers('self.z = getattr(self, "z", x * 0) ; self.z += 1; return {"y": x, "z": self.z}'))
    first = backend.infer({"x": _X}, ())
    backend.infer({"x": _X}, ())
    np.testing.assert_array_equal(first["z"], _X)
    first["y"][:] = 7
    np.testing.assert_array_equal(_X, np.ones((1, 2)))


def test_text_goes_in_and_out_as_bytes(tmp_path: Path) -> None:
    x = np.array([[b"a\0", b""]], dtype=object)
    backend = load(tmp_path, infers('return {"y": x + b"!", "z": x}'), "BYTES")
    assert backend.infer({"x": x}, ("y",))["y"].tolist() == [[b"a\0!", b"!"]]


def test_there_is_no_file_to_complete_a_configuration_from(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="does not tell"):
        describe_model("python", tmp_path)
