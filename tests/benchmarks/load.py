"""HTTP load by wrk: the same POST over some connections for some seconds, and what wrk saw. Knows no server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tests.benchmarks.stack import BenchmarkError

_REMEDY = "install it: apt-get install wrk | dnf install wrk | brew install wrk"
# Without a request function wrk builds the request once, and runs no Lua for each.
_SCRIPT = """\
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [==[{body}]==]
"""
_DONE = """\
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\n{"requests": %d, "duration_us": %d, "errors": %d, "p50_us": %d, "p99_us": %d}\\n',
    summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


# Cycles through paths: what is asked must not be the same each time.
_PATHS_SCRIPT = """\
local paths = {{}}
for line in io.lines("{paths}") do paths[#paths + 1] = line end
local at = 0
function request()
  at = at % #paths + 1
  return wrk.format("GET", paths[at])
end
"""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a run of load did."""

    requests: int
    duration_s: float
    p50_ms: float
    p99_ms: float

    @property
    def rps(self) -> float:
        """Requests per second."""
        return self.requests / self.duration_s


def ensure_wrk() -> None:
    """Find wrk, or install it as root on Debian or Ubuntu, saying so before. Raises BenchmarkError."""
    if shutil.which("wrk"):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("tidegate: wrk is missing: running apt-get update and apt-get install wrk", file=sys.stderr)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", "wrk"]):
            subprocess.run(["apt-get", *arguments], env=environment, stdout=2, check=False)
    if not shutil.which("wrk"):
        raise BenchmarkError(f"wrk, which makes the HTTP load, was not found; {_REMEDY}")


def post(
    url: str, body: str, *, outstanding: int, run_s: int, headers: Mapping[str, str] = MappingProxyType({})
) -> Load:
    """Post `body` to `url` over `outstanding` connections, one request at a time on each, for `run_s` seconds.

    Raises BenchmarkError when a single request fails or is not answered below 400: such a figure would mean nothing.
    """
    lines = [f'wrk.headers["{name}"] = "{value}"\n' for name, value in headers.items()]
    return _run(url, "".join([_SCRIPT.format(body=body), *lines]), outstanding, run_s)


def get(url: str, paths: Sequence[str], *, outstanding: int, run_s: int) -> Load:
    """Get the paths below `url` in turn; as `post`."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(paths))
        file.flush()
        return _run(url, _PATHS_SCRIPT.format(paths=file.name), outstanding, run_s)


def _run(url: str, lua: str, outstanding: int, run_s: int) -> Load:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(lua + _DONE)
        script.flush()
        command = ["wrk", "-t1", f"-c{outstanding}", f"-d{run_s}s", "--timeout", "10s", "-s", str(Path(script.name))]
        done = subprocess.run([*command, url], capture_output=True, text=True, check=False)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError) as cause:
        raise BenchmarkError(f"wrk failed with {done.returncode}: {done.stdout}{done.stderr}") from cause
    if told["errors"] or not told["requests"]:
        raise BenchmarkError(f"of {told['requests']} requests to {url}, {told['errors']} failed:\n{done.stdout}")
    return Load(
        requests=told["requests"],
        duration_s=told["duration_us"] / 1e6,
        p50_ms=told["p50_us"] / 1e3,
        p99_ms=told["p99_us"] / 1e3,
    )
