"""`up` as its users run it: what it prints works when pasted, and Ctrl-C ends everything."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.local_process import NEEDS_PROC, marked_pids, read_until, start_local
from tests.models import identity, write_model

TIMEOUT_S = 120


@pytest.mark.kafka
@NEEDS_PROC
@pytest.mark.skipif(shutil.which("curl") is None, reason="the printed commands are of curl")
def test_printed_commands_work_and_what_is_kept_serves_again(
    marked: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    models, kept = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("kept")
    write_model(models, "echo", identity(dims=("batch", 3)))
    arguments = ["up", "--models", str(models), "--keep", str(kept), "--port", "0"]
    process = start_local(marked, *arguments)
    commands = read_until(process, "Ctrl-C").split("try:\n\n")[1].split("\n\n")[0]
    said = _bash(commands + "\necho; echo $job")
    assert '{"ready":true}' in said
    assert said.count('"data":[0.0,0.0,0.0]') >= 1
    assert '"pool":"default"' in said
    assert "scored 2 rows" in said
    _interrupt(process, marked)

    process = start_local(marked, *arguments)
    url = read_until(process, "Ctrl-C").split("gateway at ")[1].split(" ")[0]
    path = said.strip().splitlines()[-1].partition("/v1/")[2]
    assert '"data":[0.0,0.0,0.0]' in _bash(f"curl -s {url}/v1/{path}/result")
    _interrupt(process, marked)


def test_a_directory_without_models_is_refused_before_anything_starts(marked: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    process = start_local(marked, "up", "--models", str(empty))
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "is no model repository" in output
    assert "Kafka at" not in output


def _bash(script: str) -> str:
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout


def _interrupt(process: subprocess.Popen[str], environment: dict[str, str]) -> None:
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    assert output.endswith("stopped\n")
    assert marked_pids(environment) == []
