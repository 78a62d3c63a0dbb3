"""`python -m tests.benchmarks.engine`: the worker engine's benchmarks, against one broker. See BENCHMARKS.md.

Each measure is a module with `measure(bench)`, imported when its turn comes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from local.errors import LocalStackError
from tests.benchmarks.bench import FULL_CHAOS_S, FULL_RUN_S, Bench, open_bench
from tests.benchmarks.engine_figures import ENGINE
from tests.benchmarks.report import markdown, print_tables, write_json, write_markdown
from tests.benchmarks.stack import BenchmarkError

_ROOT = Path(__file__).parents[2]
_MODULES = {
    "bisect": "engine_bisect",
    "simulator": "batching_sim",
    "download": "engine_download",
    "cold_start": "engine_cold_start",
    "hot_set": "engine_hot_set",
    "rebalance": "engine_rebalance",
    "chaos": "engine_chaos",
}


def main() -> int:
    """Measure, print, write; 0 when all was measured (targets missed or not), 1 when something failed."""
    options = _parse()
    # What a person reads goes to stderr as it comes; the Markdown, which is the output, to stdout.
    console = Console(stderr=True)
    try:
        measures = {name: _measure(name) for name in _MODULES if name in options.only}
        with open_bench(options.run_s, console, chaos_s=options.chaos_s, seed=options.seed) as bench:
            for name, measure in measures.items():
                console.print(f"[bold]{name}[/]")
                measure(bench)
        figures = bench.medians()
        write_json(_ROOT / ".bench" / "engine.json", figures, ENGINE)
        print_tables(console, figures, bench.runs, ENGINE)
        text = markdown(figures, bench.runs, " ".join([ENGINE.command, *sys.argv[1:]]), ENGINE)
        print(text)
        if options.write:
            write_markdown(_ROOT / "BENCHMARKS.md", text, ENGINE)
    except LocalStackError as error:
        console.print(f"tidegate: {error}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _measure(name: str) -> Callable[[Bench], None]:
    """What measures this. Raises BenchmarkError when it is not there, or what it needs is not installed."""
    module = f"tests.benchmarks.{_MODULES[name]}"
    try:
        measure: Callable[[Bench], None] = importlib.import_module(module).measure
    except ModuleNotFoundError as cause:
        raise BenchmarkError(f"{name} cannot be measured: {module} needs {cause.name}, which is not there") from cause
    return measure


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=ENGINE.command, description="Measure; see BENCHMARKS.md.")
    parser.add_argument("--only", nargs="+", choices=[*_MODULES], default=[*_MODULES], help="only these")
    parser.add_argument("--run-s", type=int, default=FULL_RUN_S, help="seconds of one run (default: %(default)s)")
    parser.add_argument(
        "--chaos-s", type=int, default=FULL_CHAOS_S, help="seconds of killing workers (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="of what chaos draws by chance (default: another one each time)")
    parser.add_argument("--write", action="store_true", help="put the tables into BENCHMARKS.md")
    options = parser.parse_args()
    if options.run_s < 1 or options.chaos_s < 1:
        parser.error("--run-s, --chaos-s: 1 second or more")
    if options.write and len(options.only) < len(_MODULES):
        parser.error("--write wants all benchmarks of one run: leave --only out")
    return options


if __name__ == "__main__":
    sys.exit(main())
