"""Suite: the command of one sheet of figures: its options, its measures in turn against one broker, its tables.

Each measure is a module with `measure(bench)`, imported when its turn comes. Knows none of them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from local.errors import LocalStackError
from tests.benchmarks.bench import FULL_CHAOS_S, FULL_FUZZ_CASES, FULL_RUN_S, Bench, open_bench
from tests.benchmarks.figures import Sheet
from tests.benchmarks.report import markdown, print_tables, write_json, write_markdown
from tests.benchmarks.stack import BenchmarkError

_ROOT = Path(__file__).parents[2]


def run(sheet: Sheet, modules: Mapping[str, str], results: str) -> int:
    """Measure, print, write; 0 when all was measured (targets missed or not), 1 when something failed.

    `modules`: by the name of a measure, its module in this package. `results`: the JSON file's name in .bench.
    """
    options = _parse(sheet, modules)
    # What a person reads goes to stderr as it comes; the Markdown, which is the output, to stdout.
    console = Console(stderr=True)
    try:
        measures = {name: _measure(name, module) for name, module in modules.items() if name in options.only}
        with open_bench(
            options.run_s, console, chaos_s=options.chaos_s, seed=options.seed, fuzz_cases=options.fuzz_cases
        ) as bench:
            for name, measure in measures.items():
                console.print(f"[bold]{name}[/]")
                measure(bench)
        figures = bench.medians()
        write_json(_ROOT / ".bench" / results, figures, sheet)
        print_tables(console, figures, bench.runs, sheet)
        text = markdown(figures, bench.runs, " ".join([sheet.command, *sys.argv[1:]]), sheet)
        print(text)
        if options.write:
            write_markdown(_ROOT / "BENCHMARKS.md", text, sheet)
    except LocalStackError as error:
        console.print(f"tidegate: {error}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _measure(name: str, module: str) -> Callable[[Bench], None]:
    """What measures this. Raises BenchmarkError when it is not there, or what it needs is not installed."""
    module = f"tests.benchmarks.{module}"
    try:
        measure: Callable[[Bench], None] = importlib.import_module(module).measure
    except ModuleNotFoundError as cause:
        raise BenchmarkError(f"{name} cannot be measured: {module} needs {cause.name}, which is not there") from cause
    return measure


def _parse(sheet: Sheet, modules: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=sheet.command, description="Measure; see BENCHMARKS.md.")
    parser.add_argument("--only", nargs="+", choices=[*modules], default=[*modules], help="only these")
    parser.add_argument("--run-s", type=int, default=FULL_RUN_S, help="seconds of one run (default: %(default)s)")
    if "chaos" in modules:
        help_ = "seconds of killing workers (default: %(default)s)"
        parser.add_argument("--chaos-s", type=int, default=FULL_CHAOS_S, help=help_)
    if "fuzz" in modules:
        help_ = "requests that are made up (default: %(default)s)"
        parser.add_argument("--fuzz-cases", type=int, default=FULL_FUZZ_CASES, help=help_)
    parser.add_argument("--seed", type=int, help="of what is drawn by chance (default: another one each time)")
    parser.add_argument("--write", action="store_true", help="put the tables into BENCHMARKS.md")
    parser.set_defaults(chaos_s=FULL_CHAOS_S, fuzz_cases=FULL_FUZZ_CASES)
    options = parser.parse_args()
    if min(options.run_s, options.chaos_s, options.fuzz_cases) < 1:
        parser.error("--run-s, --chaos-s, --fuzz-cases: 1 or more")
    if options.write and len(options.only) < len(modules):
        parser.error("--write wants all benchmarks of one run: leave --only out")
    return options
