"""The demo: this project's own files through every way into tidegate, and what came of it, on the terminal.

Must not know how any part is started or spoken to; it tells the story and checks that the ways agree.
"""

import asyncio
import json
import os
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from local.errors import LocalStackError
from local.magika import MODEL_NAME, features, lay_out_repository
from local.offline import create_topic, delete_topics, produce_rows, read_verdicts
from local.online import INFER_PATH, classify_by_jobs, classify_now
from local.stack import Stack
from local.verdict import Verdict

PROJECT = Path(__file__).resolve().parents[1]

_MAX_TABLE_ROWS = 40
_SCORE_TOLERANCE = 0.02  # a batch of one runs through other kernels than a batch of many
_NOT_OURS = {"__pycache__", "build", "dist"}

Rows = Mapping[str, npt.NDArray[np.int32]]


class DisagreementError(LocalStackError):
    """Online and offline do not say the same of the same files."""


def run_demo(files: Sequence[Path], *, console: Console) -> None:
    """Classify these files (none: the project's own) in all ways and print what came of it.

    Raises LocalStackError when a part fails, DisagreementError when the ways disagree; nothing is left running then.
    """
    names = {_name(path): path for path in files or project_files()}
    made = {name: features(path.read_bytes()) for name, path in names.items()}
    rows = {name: row for name, row in made.items() if row is not None}
    if not rows:
        raise LocalStackError("no file is large enough for the model to tell; name others with --files")
    _say(console, f"[bold]tidegate demo[/]: what kind of file is it? {len(rows)} files, one real model ({MODEL_NAME})")
    if small := len(made) - len(rows):
        _say(console, f"  {small} more are too small for the model to tell")
    prefix = f"demo-{secrets.token_hex(3)}"
    with TemporaryDirectory(prefix="tidegate-models-") as models:
        lay_out_repository(Path(models))
        say = partial(_say, console)
        say("  starting Kafka, a gateway and a worker")
        stack = Stack(models=models, prefix=prefix, say=lambda line: say(f"  {line}"))
        try:
            with stack:
                stack.await_answer(f"/v2/models/{MODEL_NAME}/ready")
                _show(stack, rows, prefix, console)
        finally:
            if stack.url and os.environ.get("TIDEGATE_KAFKA_BOOTSTRAP"):
                delete_topics(stack.bootstrap, prefix)  # that Kafka goes on, without our topics
            _check_nothing_runs(stack, console)


def project_files() -> list[Path]:
    """The files of this project: those that git knows or would, else all that are not made by tools."""
    command = ["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # no git, or an unpacked archive
        found = PROJECT.rglob("*")
        hidden = [path for path in found if not _is_made(path.relative_to(PROJECT))]
        return sorted(path for path in hidden if path.is_file())
    paths = sorted({PROJECT / os.fsdecode(name) for name in listed.split(b"\0") if name})
    return [path for path in paths if path.is_file()]


def _is_made(path: Path) -> bool:
    hidden = any(part.startswith(".") and part not in (".ci", ".gitignore") for part in path.parts)
    return hidden or any(part in _NOT_OURS or part.endswith(".egg-info") for part in path.parts)


def _name(path: Path) -> str:
    path = path.resolve()
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)


def _say(console: Console, line: str, *, markup: bool = True) -> None:
    """Print a line that the terminal may wrap, but that is copied as one."""
    console.print(line, markup=markup, highlight=False, soft_wrap=True)


def _show(stack: Stack, rows: Rows, prefix: str, console: Console) -> None:
    _show_one(stack, rows, console)
    verdicts, wall_s = _show_jobs(stack, rows, console)
    offline = _show_offline(stack, rows, prefix, console)
    console.print()
    console.print(_table(verdicts))
    _summarise(verdicts, wall_s, console)
    _compare(verdicts, offline, console)


def _show_one(stack: Stack, rows: Rows, console: Console) -> None:
    name = "README.md" if "README.md" in rows else next(iter(rows))
    _say(console, f"\n[bold]1. One file, synchronously[/]: POST {INFER_PATH}, {escape(name)} as JSON")
    answer = classify_now(stack.url, rows[name])
    result = answer.result
    outputs = [
        {"name": name, "datatype": tensor.datatype, "shape": tensor.shape, "data": "..."}
        for name, tensor in result.outputs.items()
    ]
    shown = {
        "model_name": result.model,
        "model_version": result.version,
        "outputs": outputs,
        "parameters": result.parameters,
    }
    _say(console, f"  200 in {answer.took_ms:.0f} ms, {answer.verdict.load_ms:.0f} of them to load the model")
    _say(console, f"  {json.dumps(shown)}", markup=False)
    _say(console, f"  {escape(name)} is [bold]{answer.verdict.label}[/], score {answer.verdict.score:.3f}")


def _show_jobs(stack: Stack, rows: Rows, console: Console) -> tuple[dict[str, Verdict], float]:
    _say(
        console, "\n[bold]2. All files, asynchronously[/]: the same with Prefer: respond-async, then the jobs' results"
    )
    jobs: list[str] = []
    columns = (TextColumn("  classified"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(rows))
        began_s = time.perf_counter()
        verdicts = asyncio.run(
            classify_by_jobs(stack.url, rows, on_accepted=jobs.append, on_done=lambda: progress.advance(task))
        )
        wall_s = time.perf_counter() - began_s
    _say(console, f"  {len(jobs)} answers 202 Accepted, the first with Location: /v1/jobs/{jobs[0]}")
    return verdicts, wall_s


def _show_offline(stack: Stack, rows: Rows, prefix: str, console: Console) -> dict[str, Verdict]:
    source, target = f"{prefix}.files", f"{prefix}.verdicts"
    score = ["-m", "workers", "score", "--model", MODEL_NAME, "--from", source, "--to", target]
    _say(console, f"\n[bold]3. All files, offline[/]: {len(rows)} records to a topic, then python {' '.join(score)}")
    create_topic(stack.bootstrap, source)
    asyncio.run(produce_rows(stack.bootstrap, source, rows))
    for line in stack.run("score", score).splitlines():
        if not line.startswith("{"):  # its log's lines are JSON objects, its summary is not
            _say(console, f"  {line}", markup=False)
    return asyncio.run(read_verdicts(stack.bootstrap, target, count=len(rows)))


def _table(verdicts: Mapping[str, Verdict]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("file", "label"):
        table.add_column(heading)
    for heading in ("score", "batch rows", "queue ms", "infer ms"):
        table.add_column(heading, justify="right")
    for name, verdict in list(verdicts.items())[:_MAX_TABLE_ROWS]:
        times = (f"{verdict.queue_ms:.1f}", f"{verdict.infer_ms:.1f}")
        table.add_row(escape(name), verdict.label, f"{verdict.score:.3f}", str(verdict.batch_rows), *times)
    return table


def _summarise(verdicts: Mapping[str, Verdict], wall_s: float, console: Console) -> None:
    if (more := len(verdicts) - _MAX_TABLE_ROWS) > 0:
        counts: dict[str, int] = {}
        for verdict in list(verdicts.values())[_MAX_TABLE_ROWS:]:
            counts[verdict.label] = counts.get(verdict.label, 0) + 1
        by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        _say(console, f"and {more} more: {', '.join(f'{count} {label}' for label, count in by_count)}")
    # Every row of a batch tells the batch's size: one over it is the row's share of that batch.
    batches = sum(1 / verdict.batch_rows for verdict in verdicts.values())
    _say(
        console,
        f"\n{len(verdicts)} files in {wall_s:.2f} s, {len(verdicts) / wall_s:.0f} req/s, "
        f"mean batch {len(verdicts) / batches:.1f} rows",
    )


def _compare(online: Mapping[str, Verdict], offline: Mapping[str, Verdict], console: Console) -> None:
    gaps = {name: abs(verdict.score - offline[name].score) for name, verdict in online.items()}
    agreed = [
        name
        for name, verdict in online.items()
        if verdict.label == offline[name].label and gaps[name] <= _SCORE_TOLERANCE
    ]
    line = f"online and offline agree on {len(agreed)} of {len(online)} files, scores within {max(gaps.values()):.4f}"
    _say(console, line)
    for name in online.keys() - set(agreed):
        _say(console, f"  {name}: {online[name]} online, {offline[name]} offline", markup=False)
    if len(agreed) < len(online):
        raise DisagreementError(f"{len(online) - len(agreed)} files were answered in two ways; see above")


def _check_nothing_runs(stack: Stack, console: Console) -> None:
    if left := stack.still_running():
        raise LocalStackError(f"processes {left} were started here and still run; end them with kill")
    _say(console, "nothing is left running")
