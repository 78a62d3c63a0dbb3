"""The pure Batcher: rows per second through it, with nothing around it."""

from __future__ import annotations

import time

from tests.benchmarks.bench import Bench
from workers.batcher import Batcher, BatchPolicy, Entry

_ROWS = 1_000_000
_FETCH_ROWS = 100
_SIGNATURE = ("INPUT0", "FP32", (16,))


def measure(bench: Bench) -> None:
    """batcher_rows_s."""
    bench.repeat(lambda: {"batcher_rows_s": _batcher_rows_s(bench.rows(_ROWS))})


def _batcher_rows_s(rows: int) -> float:
    """Requests of one row arrive by the hundred and leave as full batches of 32; what a lane does around each fetch."""
    batcher: Batcher[int] = Batcher(BatchPolicy(max_batch_rows=32, max_queue_delay_us=5000))
    left = 0
    now_us = 0
    begun_s = time.perf_counter()
    for first in range(0, rows, _FETCH_ROWS):
        now_us += 1000
        for row in range(first, first + _FETCH_ROWS):
            batcher.add(Entry(row, 1, _SIGNATURE, now_us))
        batcher.take_refused(now_us)
        while (batch := batcher.cut(now_us)) is not None:
            left += len(batch)
        batcher.next_due()
    while (batch := batcher.cut(now_us, flush=True)) is not None:
        left += len(batch)
    duration_s = time.perf_counter() - begun_s
    assert left >= rows  # each left once
    return left / duration_s
