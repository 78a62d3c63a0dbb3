"""Replayed: what a replay found and did, and how that is told on a terminal. Knows no Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from schemas.record import Origin, rfc3339

_SHOWN_CHARS = 100
_UNATTENDED_COLUMNS = 160  # where there is no terminal to fit into

Place = tuple[str, int, int]  # model, partition and offset of a dead letter


@dataclass(frozen=True, slots=True)
class Found:
    """What is kept of a letter that was read. Letters of one request have the same `request`."""

    place: Place
    request: tuple[Origin, int]
    kind: tuple[str, str, str]  # see workers/selection.py
    message: str
    attempts: int
    time_ms: int
    is_meant: bool


@dataclass(slots=True)
class Group:
    """Letters of one model and one kind of failure. Times are milliseconds since the epoch."""

    model: str
    stage: str
    code: str
    message: str  # of the first of them
    count: int = 0
    most_attempts: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, found: Found) -> None:
        """Count one in."""
        self.first_ms = min(self.first_ms or found.time_ms, found.time_ms)
        self.last_ms = max(self.last_ms, found.time_ms)
        self.count += 1
        self.most_attempts = max(self.most_attempts, found.attempts)


@dataclass(slots=True)
class Replayed:
    """What a run did. Of the letters that were meant: `chosen` to be sent, or why not."""

    chosen: int = 0
    sent: int = 0
    sent_before: int = 0  # by a former replay
    repeats: int = 0  # a second letter of the same request
    beyond_limit: int = 0
    without_topic: int = 0  # their model has no request topic any more
    too_large: int = 0  # of the chosen
    vanished: int = 0  # of the chosen, between being found and being sent
    unreadable: int = 0  # no dead letters at all
    interrupted: bool = False
    duration_s: float = 0.0
    groups: list[Group] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """True when everything chosen was sent."""
        return self.sent == self.chosen

    def remarks(self) -> Iterator[str]:
        """What else there is to say, a line each."""
        told = (
            (self.sent_before, "were sent by a former replay: --again sends them once more"),
            (self.repeats, "are second letters of a request that is sent once"),
            (self.beyond_limit, "are beyond --limit"),
            (self.without_topic, "are of models that have no request topic any more: start a worker that serves them"),
            (self.too_large, "are too large for a record"),
            (self.vanished, "were removed from the topic meanwhile"),
            (self.unreadable, "records are no dead letters"),
        )
        return (f"{count:,} {remark}" for count, remark in told if count)


def grouped(letters: Iterable[Found]) -> list[Group]:
    """The letters by model and kind of failure, the most frequent ones first within a model."""
    groups: dict[tuple[str, ...], Group] = {}
    for letter in letters:
        model = letter.place[0]
        stage, code, _ = letter.kind
        groups.setdefault((model, *letter.kind), Group(model, stage, code, letter.message)).add(letter)
    return sorted(groups.values(), key=lambda group: (group.model, -group.count))


def tell(replayed: Replayed, *, dry_run: bool) -> None:
    """Print the summary, which is the command's output; of a dry run with a table of what would be sent."""
    output = Console()
    if dry_run and replayed.groups:
        (output if output.is_terminal else Console(width=_UNATTENDED_COLUMNS)).print(_table_of(replayed.groups))
    if dry_run:
        print(f"would replay {replayed.chosen:,} requests; nothing was sent")
    else:
        print(f"replayed {replayed.sent:,} of {replayed.chosen:,} requests in {replayed.duration_s:.1f} s")
    for remark in replayed.remarks():
        print(remark)


def _table_of(groups: Iterable[Group]) -> Table:
    table = Table("model", "stage", "code", "cause, as the first one tells it")
    for name in ("letters", "attempts"):
        table.add_column(name, justify="right")
    table.add_column("first failed", no_wrap=True)
    table.add_column("last failed", no_wrap=True)
    for group in groups:
        table.add_row(
            group.model,
            group.stage,
            group.code,
            Text(_short(group.message)),  # not markup: it may quote the request
            f"{group.count:,}",
            str(group.most_attempts),
            _time(group.first_ms),
            _time(group.last_ms),
        )
    return table


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _time(time_ms: int) -> str:
    return rfc3339(time_ms)[:19] + "Z"
