"""`python -m workers check` over repositories in a directory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from store import open_store
from workers.check import CheckedModel, CheckedRepository, check, check_repository
from workers.check_report import summary
from workers.settings import CheckSettings

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
WARM_UP = "model_warmup { name: 'a' inputs { key: 'x' value { data_type: TYPE_FP32 dims: 4 input_data_file: 'raw' } } }"


def put(repository: Path, path: str, content: str | bytes = "x") -> None:
    file = repository / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


def checked(repository: Path) -> CheckedRepository:
    return check_repository(open_store(str(repository)))


def found(repository: Path) -> list[tuple[str, str, str]]:
    """Severity, field and value of each finding of the only model."""
    report = checked(repository)
    (model,) = report.models
    assert all(finding.remedy for finding in model.findings if finding.severity == "fault")
    return [(finding.severity, finding.field, finding.value) for finding in model.findings]


def test_a_repository_without_faults_is_fine(tmp_path: Path) -> None:
    put(tmp_path, "README.md")
    put(tmp_path, ".git/config")
    put(tmp_path, "absent/1/model.onnx")
    put(tmp_path, "torch/3/model.pt2")
    put(tmp_path, "torch/config.pbtxt", TENSORS)
    put(tmp_path, "code/1/net.py")
    put(
        tmp_path,
        "code/config.pbtxt",
        TENSORS + 'backend: "python" parameters { key: "class" value { string_value: "net:A" } }',
    )
    put(tmp_path, "package/1/net/__init__.py")
    put(tmp_path, "package/config.pbtxt", TENSORS + 'backend: "python" default_model_filename: "net.py"')
    put(tmp_path, "built/1/model.onnx")
    put(tmp_path, "built/config.pbtxt", TENSORS + 'backend: "tensorrt"')
    put(tmp_path, "device/1/any")
    put(tmp_path, "device/config.pbtxt", 'backend: "device"' + TENSORS)
    put(tmp_path, "full/config.pbtxt", f"max_batch_size: 2 version_policy {{ all {{}} }} {TENSORS} {WARM_UP}")
    put(tmp_path, "full/1/model.onnx")
    put(tmp_path, "full/2/model.onnx/model.onnx")
    put(tmp_path, "full/warmup/raw", bytes(16))
    report = checked(tmp_path)
    assert [(model.name, model.backend, model.versions) for model in report.models] == [
        ("absent", "onnxruntime", ("1",)),
        ("built", "tensorrt", ("1",)),
        ("code", "python", ("1",)),
        ("device", "device", ("1",)),
        ("full", "onnxruntime", ("1", "2")),
        ("package", "python", ("1",)),
        ("torch", "pytorch", ("3",)),
    ]
    assert [finding for model in report.models for finding in model.findings] == []
    assert (report.faults, report.warnings) == (0, 0)


def test_every_fault_of_a_configuration_is_told(tmp_path: Path) -> None:
    put(tmp_path, "m/1/model.onnx")
    put(tmp_path, "m/config.pbtxt", 'name: "n" max_batch_size: -1 response_cache { enable: true } runtime: "a"')
    assert found(tmp_path) == [
        ("fault", "name", "n"),
        ("fault", "max_batch_size", "-1"),
        ("warning", "response_cache", ""),
        ("warning", "runtime", ""),
    ]


@pytest.mark.parametrize("name", ["a b", "m.high", "-m", "ä"])
def test_a_directory_that_can_name_no_model_is_a_fault(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"{name}/1/model.onnx")
    assert found(tmp_path) == [("fault", "name", name)]


def test_text_that_is_no_configuration_is_told_by_line_and_column(tmp_path: Path) -> None:
    put(tmp_path, "m/1/model.onnx")
    put(tmp_path, "m/config.pbtxt", "\nmax_batch_sise: 4")
    assert found(tmp_path) == [("fault", "config.pbtxt", "line 2, column 1")]
    put(tmp_path, "m/config.pbtxt", b"name: '\xff'")
    assert found(tmp_path) == [("fault", "config.pbtxt", "byte 7")]


def test_a_model_without_versions_is_a_fault(tmp_path: Path) -> None:
    put(tmp_path, "m/config.pbtxt", 'backend: "onnxruntime"')
    put(tmp_path, "m/01/model.onnx")
    put(tmp_path, "m/v1/model.onnx")
    assert found(tmp_path) == [("fault", "version", ""), ("warning", "version", "")]


def test_versions_of_the_policy_that_do_not_exist_are_faults(tmp_path: Path) -> None:
    put(tmp_path, "m/config.pbtxt", "version_policy { specific { versions: [ 1, 2, 3 ] } }")
    put(tmp_path, "m/2/model.onnx")
    put(tmp_path, "m/4/model.onnx")
    field = "version_policy.specific.versions"
    assert found(tmp_path) == [("fault", field, "1"), ("fault", field, "3")]
    assert checked(tmp_path).models[0].versions == ("2",)


def test_a_model_file_that_is_missing_or_empty_is_a_fault_of_each_served_version(tmp_path: Path) -> None:
    put(tmp_path, "m/config.pbtxt", 'backend: "onnxruntime" version_policy { latest { num_versions: 3 } }')
    put(tmp_path, "m/1/other.onnx")  # not served
    put(tmp_path, "m/2/other.onnx")
    put(tmp_path, "m/3/model.onnx", "")
    (tmp_path / "m" / "4").mkdir()
    field = "default_model_filename"
    assert found(tmp_path) == [("fault", field, ""), ("fault", field, "3/model.onnx"), ("fault", field, "")]
    messages = [finding.message + "; " + finding.remedy for finding in checked(tmp_path).models[0].findings]
    assert "version 2 has no model file model.onnx; there are other.onnx" in messages[0]
    assert "put the file in m/4/" in messages[2]
    put(tmp_path, "m/config.pbtxt", 'default_model_filename: "other.onnx" version_policy { specific { versions: 1 } }')
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("backend", "missing"),
    [("tensorrt", "model.plan or model.onnx"), ("pytorch", "model.pt or model.pt2"), ("python", "model.py")],
)
def test_each_backend_has_its_model_file(tmp_path: Path, backend: str, missing: str) -> None:
    put(tmp_path, "m/config.pbtxt", f'backend: "{backend}" {TENSORS}')
    put(tmp_path, "m/1/model.bin")
    assert found(tmp_path) == [("fault", "default_model_filename", "")]
    assert f"no model file {missing}" in checked(tmp_path).models[0].findings[0].message


def test_warm_up_and_label_files_that_are_missing_or_of_another_size_are_faults(tmp_path: Path) -> None:
    labelled = TENSORS.replace("dims: 2", 'dims: 2 label_filename: "labels.txt"')
    put(tmp_path, "m/config.pbtxt", f"max_batch_size: 2 {labelled} {WARM_UP}")
    put(tmp_path, "m/1/model.onnx")
    put(tmp_path, "m/1/labels.txt")  # not where it belongs
    field = "model_warmup.a.inputs.x.input_data_file"
    assert found(tmp_path) == [("fault", field, "raw"), ("fault", "output.y.label_filename", "labels.txt")]
    put(tmp_path, "m/warmup/raw", bytes(15))
    put(tmp_path, "m/labels.txt")
    assert found(tmp_path) == [("fault", field, "raw")]
    assert "has 15 bytes, one row has 16" in checked(tmp_path).models[0].findings[0].message


def test_tensors_that_no_file_tells_are_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "m/1/model.py")
    assert found(tmp_path) == [("fault", "input", "")]
    put(tmp_path, "m/config.pbtxt", TENSORS.strip().splitlines()[0])
    assert found(tmp_path) == [("fault", "output", "")]
    put(tmp_path, "m/1/model.pt")
    put(tmp_path, "m/config.pbtxt", 'backend: "pytorch"')
    assert found(tmp_path) == [("warning", "input", "")]


def test_summary_counts_in_words() -> None:
    model = CheckedModel("m", "onnxruntime", ("1",), ())
    assert summary(CheckedRepository("r", (model,), 0, 1)) == "1 model, 0 faults, 1 warning in r"
    assert summary(CheckedRepository("r", (model,) * 3, 2, 0)) == "3 models, 2 faults, 0 warnings in r"


def test_text_is_grouped_by_model_and_exit_codes_tell_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "good/1/model.onnx")
    assert check(CheckSettings(repository=str(tmp_path))) == 0
    put(tmp_path, "bad[1]/1/model.onnx")
    put(tmp_path, "worse/config.pbtxt", 'name: "[bold]n" response_cache { enable: true }')
    put(tmp_path, "worse/2/model.onnx")
    capsys.readouterr()
    assert check(CheckSettings(repository=str(tmp_path))) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "bad[1]: faulty",
        "good (onnxruntime, version 1): fine",
        "worse (onnxruntime, version 2): faulty",
        f"3 models, 2 faults, 1 warning in {tmp_path.as_uri()}",
    ]
    assert lines[4].startswith("  fault: name '[bold]n' of model 'worse' differs from its directory's; ")
    assert lines[5] == "  warning: response_cache is set and has no effect"
    assert check(CheckSettings(repository=str(tmp_path / "absent"))) == 2
    assert "is not there" in capsys.readouterr().err
    assert check(CheckSettings(repository="gs://bucket")) == 2


def test_a_repository_without_models_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(CheckSettings(repository=str(tmp_path))) == 1
    assert "no model" in capsys.readouterr().out


def test_command_imports_no_ml_library_and_prints_json(tmp_path: Path) -> None:
    put(tmp_path, "m/1/model.onnx", b"not an ONNX file at all")
    put(tmp_path, "m/config.pbtxt", "max_batch_size: 4")
    program = (
        "import sys; from workers.__main__ import main\n"
        "try: main()\n"
        "finally: print(sorted({'onnxruntime', 'torch', 'tensorrt', 'aiokafka', 'boto3'} & set(sys.modules)), "
        "file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", str(tmp_path), "--json"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert json.loads(done.stdout) == {
        "repository": tmp_path.as_uri(),
        "models": [{"name": "m", "backend": "onnxruntime", "versions": ["1"], "findings": []}],
        "faults": 0,
        "warnings": 0,
    }


def test_help_teaches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers", "check", "--help"], capture_output=True, text=True, check=True
    )
    for words in ("REPOSITORY", "--json", "exit code", "s3://", "docs/model-config.md"):
        assert words in done.stdout
