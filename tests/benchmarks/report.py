"""Report: the figures as a table on the terminal, as Markdown for BENCHMARKS.md, and as JSON. Measures nothing."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.bench import shown, spread
from tests.benchmarks.figures import Sheet
from tests.benchmarks.stack import BenchmarkError


def write_json(path: Path, figures: Mapping[str, float], sheet: Sheet) -> None:
    """Write a flat object, name -> number: the figures of this run and what the targets make of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sheet.with_targets(figures), indent=2) + "\n")


def print_tables(
    console: Console, figures: Mapping[str, float], runs: Mapping[str, Sequence[float]], sheet: Sheet
) -> None:
    """For people at a terminal."""
    for title, header, lines in _tables(figures, runs, sheet):
        table = Table(title=title, title_justify="left", show_edge=False)
        for index, name in enumerate(header):
            table.add_column(name, justify="right" if index == 1 else "left", overflow="fold")
        for line in lines:
            table.add_row(*line, style="bold red" if line[-1] == "no" else None)
        console.print(table, "")


def markdown(figures: Mapping[str, float], runs: Mapping[str, Sequence[float]], command: str, sheet: Sheet) -> str:
    """For BENCHMARKS.md."""
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    parts = [
        f"{datetime.date.today().isoformat()}, `{command}`, {len(os.sched_getaffinity(0))} cores, "
        f"{memory_gb:.0f} GiB of memory, {platform.system()} on {platform.machine()}, Python "
        f"{platform.python_version()}."
    ]
    for title, header, lines in _tables(figures, runs, sheet):
        rule = ["---:" if index == 1 else "---" for index in range(len(header))]
        table = [f"**{title}**", "", *(f"| {' | '.join(line)} |" for line in (header, rule, *lines))]
        parts.append("\n".join(table))
    return "\n\n".join(parts)


def write_markdown(path: Path, text: str, sheet: Sheet) -> None:
    """Replace what stands between the two comments of BENCHMARKS.md. Raises BenchmarkError when they are not there."""
    begin = f"<!-- {sheet.name}: begin, written by {sheet.command} --write -->"
    end = f"<!-- {sheet.name}: end -->"
    before, found, rest = path.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise BenchmarkError(f"{path} has no place for the figures: put two lines there, {begin} and {end}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def _tables(
    figures: Mapping[str, float], runs: Mapping[str, Sequence[float]], sheet: Sheet
) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, header and lines of each table."""
    targets = [
        [target.key, shown(value), target.told, "yes" if target.is_reached(value) else "no"]
        for target in sheet.targets
        if (value := target.value(figures)) is not None
    ]
    if targets:
        yield "It must reach", ["figure", "value", "target", "reached"], targets
    lines = [
        [name, shown(figures[name]), spread(runs[name]), meaning]
        for name, meaning in sheet.meanings.items()
        if name in figures
    ]
    yield sheet.title, ["figure", "median", "runs", "meaning"], lines
