"""Bench: what every benchmark is given, and where its figures are kept. Knows none of the benchmarks."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from local.kafka import LocalKafka
from tests.benchmarks.stack import Stack

ROUNDS = 3
FULL_RUN_S = 5
FULL_CHAOS_S = 300
FULL_FUZZ_CASES = 120_000


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One broker, a directory that is removed at the end, and how long a run is.

    `broker_pid` None: the broker is not ours. `run_s`: whole seconds of load in one run. `chaos_s`: of the run in which
    workers are killed; `fuzz_cases`: requests made up; `seed`: of what is drawn by chance, None: another one each time.
    """

    bootstrap: str
    broker_pid: int | None
    directory: Path
    run_s: int
    console: Console
    chaos_s: int = FULL_CHAOS_S
    fuzz_cases: int = FULL_FUZZ_CASES
    seed: int | None = None
    runs: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def stack(self, prefix: str, models: Mapping[str, str]) -> Stack:
        """An installation of its own, nothing started. `models`: config.pbtxt by name."""
        return Stack(bootstrap=self.bootstrap, directory=self.directory / prefix, prefix=prefix, models=models)

    def rows(self, full: int) -> int:
        """So many rows of a run with a given number of them: `full` when runs are of the usual length."""
        return full * self.run_s // FULL_RUN_S

    def repeat(self, one_round: Callable[[], Mapping[str, float]]) -> None:
        """Run a round once to warm up, then three times for its figures.

        Figures that are compared belong into one round: so they are measured in turn, in the same minutes.
        """
        for number in range(ROUNDS + 1):
            label = f"round {number}" if number else "warm-up"
            figures = one_round()
            told = "  ".join(f"{name} {shown(value)}" for name, value in figures.items())
            self.console.print(f"  {label}: {told}", soft_wrap=True, highlight=False)
            if number:
                for name, value in figures.items():
                    self.runs[name].append(value)

    def medians(self) -> dict[str, float]:
        """Each figure's median of its runs."""
        return {name: statistics.median(values) for name, values in self.runs.items()}


@contextlib.contextmanager
def open_bench(
    run_s: int,
    console: Console,
    *,
    chaos_s: int = FULL_CHAOS_S,
    fuzz_cases: int = FULL_FUZZ_CASES,
    seed: int | None = None,
) -> Iterator[Bench]:
    """A bench with a broker of its own, or that of TIDEGATE_KAFKA_BOOTSTRAP."""
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-bench-")))
        broker_pid = None
        bootstrap = os.environ.get("TIDEGATE_KAFKA_BOOTSTRAP", "")
        if not bootstrap:
            broker = opened.enter_context(LocalKafka())
            bootstrap, broker_pid = broker.bootstrap, broker.pid
        yield Bench(
            bootstrap=bootstrap,
            broker_pid=broker_pid,
            directory=directory,
            run_s=run_s,
            console=console,
            chaos_s=chaos_s,
            fuzz_cases=fuzz_cases,
            seed=seed,
        )


def shown(value: float) -> str:
    """A figure as people read it: three digits or more, no more decimals than that needs."""
    if value == 0:
        return "0"
    for bound, digits in ((1, 3), (10, 2), (100, 1)):
        if abs(value) < bound:
            return f"{value:.{digits}f}"
    return f"{value:,.0f}"


def spread(values: Sequence[float]) -> str:
    """The lowest and the highest run."""
    return f"{shown(min(values))} to {shown(max(values))}"
