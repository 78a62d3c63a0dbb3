"""`python -m tests.benchmarks`: all benchmarks in one go against one broker. See BENCHMARKS.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from local.errors import LocalStackError
from tests.benchmarks import batching, device, floor, idle, scoring, sync
from tests.benchmarks.bench import FULL_RUN_S, open_bench
from tests.benchmarks.figures import MAIN
from tests.benchmarks.load import ensure_wrk
from tests.benchmarks.report import markdown, print_tables, write_json, write_markdown

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / ".bench" / "results.json"
_BENCHMARKS = {
    "batching": batching.measure,
    "idle": idle.measure,
    "sync": sync.measure,
    "device": device.measure,
    "scoring": scoring.measure,
}


def main() -> int:
    """Measure, print, write; 0 when all was measured (targets missed or not), 1 when something failed."""
    options = _parse()
    # What a person reads goes to stderr as it comes; the Markdown, which is the output, to stdout.
    console = Console(stderr=True)
    try:
        ensure_wrk()
        with open_bench(options.run_s, console) as bench:
            if options.hold:
                sync.hold(bench, options.hold)
                return 0
            if set(options.only) - {"batching", "idle"}:
                console.print("[bold]warming the broker up[/]")
                floor.warm_up(bench.bootstrap, log=bench.directory / "warm-up.log", run_s=4 * bench.run_s)
            for name, measure in _BENCHMARKS.items():
                if name in options.only:
                    console.print(f"[bold]{name}[/]")
                    measure(bench)
        figures = bench.medians()
        write_json(_RESULTS, figures, MAIN)
        print_tables(console, figures, bench.runs, MAIN)
        text = markdown(figures, bench.runs, " ".join([MAIN.command, *sys.argv[1:]]), MAIN)
        print(text)
        if options.write:
            write_markdown(_ROOT / "BENCHMARKS.md", text, MAIN)
    except LocalStackError as error:
        console.print(f"tidegate: {error}", style="red", markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Measure; see BENCHMARKS.md.")
    parser.add_argument("--only", nargs="+", choices=[*_BENCHMARKS], default=[*_BENCHMARKS], help="only these")
    parser.add_argument(
        "--run-s", type=int, default=FULL_RUN_S, help="seconds of one run (default: %(default)s); rows scale with it"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into BENCHMARKS.md")
    parser.add_argument(
        "--hold",
        type=int,
        default=0,
        metavar="S",
        help="with --only sync: load for S seconds, for a profiler; no figures",
    )
    options = parser.parse_args()
    if options.hold and options.only != ["sync"]:
        parser.error("--hold belongs to --only sync")
    if options.run_s < 1:
        parser.error("--run-s: 1 second or more")
    if options.write and len(options.only) < len(_BENCHMARKS):
        parser.error("--write wants all benchmarks of one run: leave --only out")
    return options


if __name__ == "__main__":
    sys.exit(main())
