"""AckTracker: which records of one partition are done, and what may be committed. Pure: knows no Kafka client.

Records are delivered in offset order and acknowledged in any order. The committed offset is the first one that is not
done; what is done beyond it travels in the commit's metadata (schemas/progress.py), and a new owner skips it. Offsets
need not be contiguous: transaction markers and compaction leave gaps, which count as done once they are passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from schemas.progress import Progress


class AckTracker:
    """One partition's acknowledgements, from the progress that the last owner committed."""

    def __init__(self, inherited: Progress) -> None:
        self._inherited = inherited
        self._pending: deque[int] = deque()  # delivered, in order; the first one is never done
        self._done: set[int] = set()
        self._started = inherited.started
        self._position = inherited.committed

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self._position

    def deliver(self, offset: int) -> bool:
        """Note that `offset` was read. False: a former owner has done it, or it was delivered before; skip it."""
        if offset < self._position:
            return False
        self._position = offset + 1
        if not self._inherited.is_done(offset):
            self._pending.append(offset)
            return True
        if self._pending:
            self._pending.append(offset)
            self._done.add(offset)
        return False

    def pass_gap(self, position: int) -> None:
        """Note that the reader stands at `position` though no record was delivered up to it."""
        self._position = max(self._position, position)

    def start(self, offset: int) -> None:
        """Note that work on `offset` begins."""
        if offset >= self._started:
            self._started = offset + 1

    def acknowledge(self, offset: int) -> None:
        """Note that the outcome of `offset` is durable. A repeat changes nothing."""
        pending, done = self._pending, self._done
        if not pending or offset < pending[0]:
            return
        done.add(offset)
        while pending and pending[0] in done:
            done.remove(pending.popleft())

    def progress(self) -> Progress:
        """What may be committed now."""
        committed = self._pending[0] if self._pending else self._position
        runs: list[tuple[int, int]] = []
        for first, end in (*self._runs(), *self._unread_runs()):
            if first <= committed:
                committed = max(committed, end)
            elif runs and first <= runs[-1][1]:
                runs[-1] = (runs[-1][0], end)
            else:
                runs.append((first, end))
        return Progress(committed, max(committed, self._started), tuple(runs))

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Runs of done records among those delivered; a gap between two done ones is done too."""
        if not self._done:
            return
        first: int | None = None
        for offset in self._pending:
            if offset in self._done:
                first = offset if first is None else first
            elif first is not None:
                yield first, offset
                first = None
        if first is not None:
            yield first, self._position

    def _unread_runs(self) -> Iterator[tuple[int, int]]:
        """What a former owner has done beyond our position."""
        for first, end in self._inherited.done:
            if end > self._position:
                yield max(first, self._position), end
