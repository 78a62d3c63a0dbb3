"""How the findings of `check` are told: to people, grouped by model, or to machines as one JSON object.

Must not know how they were found.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from workers.check import CheckedModel, CheckedRepository

_COLOURS = {"fault": "bold red", "warning": "yellow"}


def print_report(report: CheckedRepository, *, as_json: bool) -> None:
    """Print to standard output; the last line of the text counts models, faults and warnings."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
        return
    console = Console(highlight=False, soft_wrap=True)  # lines stay whole for grep and for small terminals
    for model in report.models:
        _print_model(console, model)
    if not report.models:
        remedy = "put a model in <model>/1/ there, or name another repository"
        console.print(f"[{_COLOURS['fault']}]fault[/]: there is no model; {remedy}")
    console.print(escape(summary(report)))


def summary(report: CheckedRepository) -> str:
    """Such as "3 models, 2 faults, 1 warning in file:///srv/models"."""
    counts = ((len(report.models), "model"), (report.faults, "fault"), (report.warnings, "warning"))
    return (
        ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts) + f" in {report.repository}"
    )


def _print_model(console: Console, model: CheckedModel) -> None:
    is_faulty = any(finding.severity == "fault" for finding in model.findings)
    versions = f"{'version' if len(model.versions) == 1 else 'versions'} {', '.join(model.versions)}"
    about = ", ".join(part for part in (model.backend, versions if model.versions else "") if part)
    state = "[bold red]faulty[/]" if is_faulty else "[green]fine[/]"
    console.print(f"[bold]{escape(model.name)}[/]{escape(f' ({about})' if about else '')}: {state}")
    for finding in model.findings:
        colour = _COLOURS[finding.severity]
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        console.print(f"  [{colour}]{finding.severity}[/]: {escape(finding.message + remedy)}")
