"""`python -m local ...` as a child process whose descendants can be told from all other processes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "TIDEGATE_TEST_MARK"
NEEDS_PROC = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="processes are told apart by their environment, read in /proc"
)


def start_local(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start the command; what it says on either stream can be read from its stdout."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "local", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Everything said up to the line that holds `text`."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"it ended before it said {text!r}:\n{seen}")


def marked_pids(environment: dict[str, str]) -> list[int]:
    """Process ids of what runs with this environment's mark, at any depth below the command or orphaned."""
    wanted = f"{MARK}={environment[MARK]}".encode()
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            given = (directory / "environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if wanted in given.split(b"\0"):
            pids.append(int(directory.name))
    return pids
