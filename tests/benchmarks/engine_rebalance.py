"""Rebalances: how long a partition that stays with its worker waits when another worker joins or leaves.

Three workers share a pool of eight partitions under a steady load, with batches of about 50 ms. The pause of a
partition is the longest time between two of its batches from the event until the pool is complete again; counted are
the partitions that the same member held before and after. The trial's figure is its worst partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Self

import uvloop
from kafka.admin import KafkaAdminClient

from schemas.topics import Topics
from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import PARTITIONS
from tests.benchmarks.stack import BenchmarkError, Stack
from tests.benchmarks.topic_load import TopicLoad, worker_beside

_MODEL = "device"
_TENSORS = "data_type: TYPE_FP32 dims: [1]"
_CONFIG = (
    f'backend: "device" input {{ name: "INPUT0" {_TENSORS} }} output {{ name: "OUTPUT0" {_TENSORS} }} '
    "max_batch_size: 16 dynamic_batching { } "
    'parameters { key: "execute_base_ms" value { string_value: "50" } }'
)
_RATE_ROWS_S = 240  # 30 a second on each partition; two workers can do 640
_TRIALS = 3
_AROUND_S = 1.0
_PATIENCE_S = 60.0
_PACE_S = 0.05

Assignment = dict[str, frozenset[int]]


def measure(bench: Bench) -> None:
    """rebalance_*."""
    stack = bench.stack("bench-rebalance", {_MODEL: _CONFIG})
    stack.provision()
    for kind, figures in uvloop.run(_trials(bench, stack)).items():
        bench.runs[f"rebalance_{kind}_pause_s"] += figures
    graceful = bench.runs["rebalance_join_pause_s"] + bench.runs["rebalance_leave_pause_s"]
    bench.runs["rebalance_pause_s"] += graceful
    bench.runs["rebalance_pause_max_s"].append(max(graceful))


async def _trials(bench: Bench, stack: Stack) -> dict[str, list[float]]:
    pauses: dict[str, list[float]] = defaultdict(list)
    load = TopicLoad(bootstrap=bench.bootstrap, prefix=stack.prefix, model=_MODEL, rate_rows_s=_RATE_ROWS_S)
    async with contextlib.AsyncExitStack() as opened:
        for number in (1, 2):
            opened.enter_context(stack.command(f"worker-{number}", ["-m", "workers", "serve"]))
        await _complete(stack, 2)
        await opened.enter_async_context(load)
        await _steady(load)
        for trial in range(_TRIALS):
            async with _Observed(stack, load, members=3) as join:
                third = await opened.enter_async_context(worker_beside(stack, f"worker-3-{trial}"))
            async with _Observed(stack, load, members=2) as leave:
                os.kill(third.pid, signal.SIGTERM)
            async with _Observed(stack, load, members=3) as join_again:
                fourth = await opened.enter_async_context(worker_beside(stack, f"worker-4-{trial}"))
            async with _Observed(stack, load, members=3) as replace:
                os.kill(fourth.pid, signal.SIGKILL)
                fifth = await opened.enter_async_context(worker_beside(stack, f"worker-5-{trial}"))
            async with _Observed(stack, load, members=2) as kill:
                os.kill(fifth.pid, signal.SIGKILL)
            changes = {"join": [join, join_again], "leave": [leave], "replace": [replace], "kill": [kill]}
            for name, seen in changes.items():
                pauses[name] += [each.pause_s for each in seen]
            told = "  ".join(f"{name} {max(each.pause_s for each in seen):.2f} s" for name, seen in changes.items())
            bench.console.print(f"  trial {trial + 1}: {told}", highlight=False)
    return pauses


async def _steady(load: TopicLoad) -> None:
    """Let the load flow until everything that was accepted a second ago has its outcome."""
    await asyncio.sleep(_AROUND_S)
    waiting = set(load.accepted)
    end_s = time.monotonic() + _PATIENCE_S
    while waiting - load.outcomes.keys():
        load.check()
        if time.monotonic() > end_s:
            raise BenchmarkError(f"requests have no outcome after {_PATIENCE_S:g} s")
        await asyncio.sleep(_PACE_S)


class _Observed:
    """A change of the pool, made within the block. `pause_s`: the worst pause of a partition that stayed."""

    def __init__(self, stack: Stack, load: TopicLoad, *, members: int) -> None:
        """`members`: of the pool, after the change."""
        self._stack = stack
        self._load = load
        self._members = members
        self._before: Assignment = {}
        self._begun_ms = 0.0
        self.pause_s = 0.0

    async def __aenter__(self) -> Self:
        await _steady(self._load)
        self._before = await asyncio.to_thread(_assignment, self._stack)
        self._begun_ms = time.time() * 1000
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            return
        after = await _complete(self._stack, self._members, unlike=self._before)
        ended_ms = time.time() * 1000
        await _steady(self._load)
        stayed = [number for member in after for number in after[member] & self._before.get(member, frozenset())]
        if not stayed:
            raise BenchmarkError("no partition stayed with its worker")
        starts: dict[int, list[int]] = defaultdict(list)
        for told in self._load.outcomes.values():
            for one in told:
                if self._begun_ms - 1000 * _AROUND_S < one.started_ms < ended_ms + 1000 * _AROUND_S:
                    starts[one.partition].append(one.started_ms)
        self.pause_s = max(_longest_gap_ms(starts[number]) for number in stayed) / 1000


def _longest_gap_ms(times_ms: list[int]) -> int:
    times_ms.sort()
    return max(later - earlier for earlier, later in itertools.pairwise(times_ms))


async def _complete(stack: Stack, members: int, *, unlike: Collection[str] = ()) -> Assignment:
    """Wait until the group is stable with so many members, not those, that hold all partitions; who holds what."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        assignment = await asyncio.to_thread(_assignment, stack)
        is_whole = sum(map(len, assignment.values())) == PARTITIONS and all(assignment.values())
        if len(assignment) == members and is_whole and assignment.keys() != set(unlike):
            return assignment
        if time.monotonic() > end_s:
            raise BenchmarkError(f"the pool was not complete after {_PATIENCE_S:g} s: {assignment}")
        await asyncio.sleep(_PACE_S)


def _assignment(stack: Stack) -> Assignment:
    """Partitions by member; empty while the group is not stable."""
    group = Topics(stack.prefix).group("default")
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=stack.bootstrap)) as admin:
        told: Mapping[str, Any] = admin.describe_groups([group])[group]
    if told["group_state"] != "Stable":
        return {}
    return {
        member["member_id"]: frozenset(
            number
            for topic in (member["member_assignment"] or {}).get("assigned_partitions", ())
            for number in topic["partitions"]
        )
        for member in told["members"]
    }
