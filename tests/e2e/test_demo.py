"""The demo as its users run it: it works, it says so, and it leaves nothing running however it ends."""

import re
import signal
import tempfile
from pathlib import Path

import pytest

from tests.e2e.local_process import NEEDS_PROC, marked_pids, read_until, start_local

pytestmark = [pytest.mark.kafka, NEEDS_PROC]

FILES = ["Makefile", "pyproject.toml", "local/pom.xml", "local/compose.yaml", "schemas/tensor.py", "LICENSE"]
TIMEOUT_S = 180


def _files() -> list[str]:
    return [argument for name in FILES for argument in ("--files", name)]


def test_demo_classifies_in_all_ways_and_leaves_nothing(marked: dict[str, str], tmp_path: Path) -> None:
    process = start_local(marked, "demo", *_files())
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    assert f"online and offline agree on {len(FILES)} of {len(FILES)} files" in output
    assert re.search(r"200 in \d+ ms", output), output
    assert "202 Accepted" in output
    assert f"scored {len(FILES)} rows" in output
    for name, label in (("Makefile", "makefile"), ("local/pom.xml", "xml"), ("schemas/tensor.py", "python")):
        assert re.search(rf"^{re.escape(name)} +{label} +[01]\.\d+ +\d+ +[\d.]+ +[\d.]+$", output, re.MULTILINE), output
    assert output.rstrip().endswith("nothing is left running")
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() != str(tmp_path)  # what is empty is the demo's directory, not ours


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_demo_that_is_interrupted_stops_everything(
    marked: dict[str, str], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = start_local(marked, "demo")
    read_until(process, "one worker, ready")
    assert len(marked_pids(marked)) >= 4  # so the fixture's check could find them
    process.send_signal(number)
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == status, output
    assert "nothing is left running" in output
    assert list(tmp_path.iterdir()) == []


def test_a_failed_part_is_told_with_its_log_and_the_rest_stops(marked: dict[str, str], tmp_path: Path) -> None:
    process = start_local({**marked, "TIDEGATE_MAX_IN_FLIGHT": "none at all"}, "demo", *_files())
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, output
    assert "the gateway ended with 2" in output
    assert "TIDEGATE_MAX_IN_FLIGHT" in output
    assert "Traceback" not in output
    log = re.search(r"its? log, (\S+gateway\.log)", output)
    assert log is not None, output
    assert Path(log[1]).is_relative_to(tmp_path)
    assert Path(log[1]).exists()
