"""The batching simulator: how many requests are answered within the SLO, by our rule, three others, and at best.

`python -m tests.benchmarks.batching_sim` prints the table and draws `.bench/batching_sim.png`. A cell is a setup
(device, instances, SLO), a pattern of arrivals and a load, as a share of what full batches back to back can do.
Each rule has, per setup and pattern, the one setting out of its grid with which it does best over all loads; the grid
of each rival holds its documented defaults, ours has two delays. Deterministic.

Figures are means over a pattern's cells, fractions of the requests that arrive. `worst` is the pattern in which ours
is least ahead of any of its targets: where they are reached there, they are reached in every pattern.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.bench import FULL_RUN_S, Bench
from tests.benchmarks.sim_arrivals import PATTERNS, Arrivals
from tests.benchmarks.sim_bound import most_on_time
from tests.benchmarks.sim_device import Device, simulate
from tests.benchmarks.sim_rules import Bento, FixedWindow, Ours, Triton

LOADS = (0.5, 0.7, 0.9, 1.0, 1.1, 1.2)
SETUPS = (
    Device(row_us=500, base_us=5_000, max_rows=32, instances=1, slo_us=100_000),
    Device(row_us=500, base_us=5_000, max_rows=32, instances=1, slo_us=50_000),
    Device(row_us=500, base_us=5_000, max_rows=32, instances=4, slo_us=100_000),
)
BOUND_SHARE = 0.90
RIVALS = ("fixed", "triton", "bento")
RULES = ("ours", *RIVALS)

_REQUESTS = 8_000  # of a cell at load 1
_PLOT = Path(__file__).parents[2] / ".bench" / "batching_sim.png"

Settings = Ours | FixedWindow | Triton | Bento
Goodputs = Mapping[str, float]


@dataclass(frozen=True)
class Cell:
    """One run of every rule with every setting over the same arrivals, and the bound: shares answered in time."""

    device: Device
    pattern: str
    load: float
    bound: float
    goodputs: Mapping[Settings, float]


def settings_of(device: Device) -> dict[str, list[Settings]]:
    """Each rule's grid, its default first."""
    full_us = device.run_us(device.max_rows)
    latest_us = device.slo_us - full_us
    windows_us = (5_000, 0, device.slo_us // 4)
    # As many as are answered in time behind a batch that has just begun, and somewhat fewer.
    queues = [int(share * device.capacity_s * latest_us / 1e6) for share in (0.6, 0.8, 1.0)]
    return {
        "ours": [Ours(0), Ours(5_000)],
        "fixed": [FixedWindow(window_us, queue) for window_us in windows_us for queue in (0, *queues)],
        "triton": [
            *(Triton(delay_us, timeout_us) for delay_us in (0, 5_000) for timeout_us in (0, latest_us, device.slo_us)),
            *(Triton(0, latest_us, queue) for queue in queues),
        ],
        "bento": [Bento(), *(Bento(int(share * device.slo_us)) for share in (0.75, 1.0, 1.5, 2.0))],
    }


def run_cell(device: Device, pattern: str, load: float, arrivals: Arrivals) -> Cell:
    """Every rule over the same arrivals."""

    goodputs = {
        setting: simulate(setting.rule(arrivals, device), arrivals, device).on_time(arrivals, device.slo_us)
        / len(arrivals)
        for grid in settings_of(device).values()
        for setting in grid
    }
    return Cell(device, pattern, load, most_on_time(arrivals, device) / len(arrivals), goodputs)


def run_all(requests: int, told: Callable[[str], None]) -> list[Cell]:
    """All cells; `requests` are those of a cell at load 1."""
    cells = []
    for number, device in enumerate(SETUPS):
        for pattern, arrive in PATTERNS.items():
            for load in LOADS:
                length_s = requests / device.capacity_s
                cells.append(run_cell(device, pattern, load, arrive(load * device.capacity_s, length_s, number)))
        told(f"setup {number + 1} of {len(SETUPS)}")
    return cells


def chosen(cells: Sequence[Cell]) -> dict[tuple[Device, str, str], Settings]:
    """By setup, pattern and rule: the setting with the most requests in time over all loads."""
    best: dict[tuple[Device, str, str], Settings] = {}
    for device in SETUPS:
        for pattern in PATTERNS:
            its = [cell for cell in cells if cell.device == device and cell.pattern == pattern]
            for rule, grid in settings_of(device).items():
                best[device, pattern, rule] = max(grid, key=lambda one: sum(cell.goodputs[one] for cell in its))
    return best


def by_pattern(cells: Sequence[Cell], *, with_defaults: bool = False) -> dict[str, Goodputs]:
    """The mean goodput of each rule and the bound over a pattern's cells."""
    best = chosen(cells)
    sums: dict[str, dict[str, float]] = {pattern: defaultdict(float) for pattern in PATTERNS}
    share = 1 / (len(SETUPS) * len(LOADS))
    for cell in cells:
        its = sums[cell.pattern]
        its["bound"] += share * cell.bound
        for rule, grid in settings_of(cell.device).items():
            setting = grid[0] if with_defaults else best[cell.device, cell.pattern, rule]
            its[rule] += share * cell.goodputs[setting]
    return {pattern: dict(its) for pattern, its in sums.items()}


def margin(goodputs: Goodputs) -> float:
    """How far ours is ahead of the nearest target, as a share: 1 is just reached."""
    ours = goodputs["ours"]
    return min(ours / goodputs["bound"] / BOUND_SHARE, *(ours / max(goodputs[rival], 1e-9) for rival in RIVALS))


def measure(bench: Bench) -> None:
    """goodput_ours, _fixed, _triton, _bento, _bound of the worst pattern, in one run: it has no spread."""
    cells = run_all(_REQUESTS * bench.run_s // FULL_RUN_S, lambda told: bench.console.print(f"  {told}"))
    worst = min(by_pattern(cells).values(), key=margin)
    for name, value in worst.items():
        bench.runs[f"goodput_{name}"].append(value)
    draw(cells, _PLOT)


def main() -> int:
    """Print and draw; 1 when a target is missed."""
    console = Console(width=120)
    cells = run_all(_REQUESTS, lambda told: print(told, file=sys.stderr))
    _print_cells(console, cells)
    for title, with_defaults in (("best settings", False), ("default settings", True)):
        table = Table("pattern", *RULES, "bound", "ours / bound", title=f"means, each with its {title}")
        for pattern, goodputs in by_pattern(cells, with_defaults=with_defaults).items():
            values = [goodputs[name] for name in (*RULES, "bound")]
            table.add_row(pattern, *(f"{value:.4f}" for value in values), f"{values[0] / values[-1]:.3f}")
        console.print(table)
    draw(cells, _PLOT)
    console.print(f"drawn: {_PLOT}")
    return 0 if all(margin(goodputs) >= 1 for goodputs in by_pattern(cells).values()) else 1


def _print_cells(console: Console, cells: Sequence[Cell]) -> None:
    best = chosen(cells)
    table = Table("instances", "SLO ms", "pattern", "load", *RULES, "bound", "ours / bound")
    for cell in cells:
        device = cell.device
        values = [cell.goodputs[best[device, cell.pattern, rule]] for rule in RULES]
        table.add_row(
            str(device.instances),
            f"{device.slo_us / 1000:g}",
            cell.pattern,
            f"{cell.load:.0%}",
            *(f"{value:.4f}" for value in (*values, cell.bound)),
            f"{values[0] / cell.bound:.3f}",
        )
    console.print(table)
    for (device, pattern, rule), setting in best.items():
        console.print(f"{device.instances} x, {device.slo_us // 1000} ms, {pattern}, {rule}: {setting}", style="dim")


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Goodput over load as PNG: a row of plots per setup, a column per pattern."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    best = chosen(cells)
    figure, axes = pyplot.subplots(
        len(SETUPS), len(PATTERNS), figsize=(13, 3.6 * len(SETUPS)), sharex=True, sharey=True, squeeze=False
    )
    for row, device in enumerate(SETUPS):
        for column, pattern in enumerate(PATTERNS):
            its = [cell for cell in cells if cell.device == device and cell.pattern == pattern]
            loads = [100 * cell.load for cell in its]
            plot = axes[row][column]
            plot.plot(loads, [cell.bound for cell in its], "k--", label="upper bound", linewidth=1)
            for rule, style in zip(reversed(RULES), ("v-", "^-", "s-", "o-"), strict=True):
                shares = [cell.goodputs[best[device, pattern, rule]] for cell in its]
                plot.plot(loads, shares, style, label=rule, color="tab:red" if rule == "ours" else None)
            plot.set_title(f"{pattern}, {device.instances} instance(s), SLO {device.slo_us // 1000} ms", fontsize=10)
            plot.grid(alpha=0.3)
    figure.supxlabel("load, % of what full batches back to back can do")
    figure.supylabel("answered within the SLO, share of requests")
    axes[0][0].set_ylim(0, 1.03)
    axes[0][0].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
