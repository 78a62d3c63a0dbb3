"""Chaos: three workers under load, one of them killed with SIGKILL every few seconds; what became of each request.

A third of the requests ask for a stored outcome, as jobs do; their repeats must be the same to the byte. For the others
the same is the same state and the same outputs: each run tells times of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time

import uvloop

from schemas.outcome import JobState
from schemas.v2 import decode_response
from tests.benchmarks.bench import Bench
from tests.benchmarks.stack import BenchmarkError, Program, Stack
from tests.benchmarks.topic_load import Told, TopicLoad, worker_beside

_MODEL = "device"
_TENSORS = "data_type: TYPE_FP32 dims: [1]"
_BATCH_ROWS = 8
_BATCH_MS = 40
_CONFIG = (
    f'backend: "device" input {{ name: "INPUT0" {_TENSORS} }} output {{ name: "OUTPUT0" {_TENSORS} }} '
    f"max_batch_size: {_BATCH_ROWS} dynamic_batching {{ }} "
    f'parameters {{ key: "execute_base_ms" value {{ string_value: "{_BATCH_MS}" }} }}'
)
_WORKERS = 3
_LOAD = 0.6  # of what the device of all workers together can do: 360 requests a second
_KILL_EVERY_S = 5.0
_STORED_EVERY = 3
_QUIET_S = 90.0  # after the load, without any new outcome, the rest counts as lost
_FIRST_S = 60.0


def measure(bench: Bench) -> None:
    """chaos_*."""
    stack = bench.stack("bench-chaos", {_MODEL: _CONFIG})
    stack.provision()
    seed = random.randrange(1 << 32) if bench.seed is None else bench.seed
    bench.console.print(f"  seed {seed}, {bench.chaos_s} s", highlight=False)
    for name, value in uvloop.run(_chaos(bench, stack, random.Random(seed))).items():
        bench.runs[name].append(value)


async def _chaos(bench: Bench, stack: Stack, dice: random.Random) -> dict[str, float]:
    rate_rows_s = _LOAD * _WORKERS * _BATCH_ROWS * 1000 / _BATCH_MS
    load = TopicLoad(
        bootstrap=bench.bootstrap,
        prefix=stack.prefix,
        model=_MODEL,
        rate_rows_s=rate_rows_s,
        stored_every=_STORED_EVERY,
    )
    kills = 0
    async with contextlib.AsyncExitStack() as opened:
        workers = [await opened.enter_async_context(worker_beside(stack, f"worker-{n}")) for n in range(_WORKERS)]
        await opened.enter_async_context(load)
        await _first_outcome(load)
        end_s = time.monotonic() + bench.chaos_s
        while time.monotonic() + _KILL_EVERY_S <= end_s:
            await asyncio.sleep(_KILL_EVERY_S)
            load.check()
            victim = dice.randrange(_WORKERS)
            os.kill(workers[victim].pid, signal.SIGKILL)
            kills += 1
            workers[victim] = await opened.enter_async_context(_replacement(stack, kills))
        await load.stop()
        begun_s = time.monotonic()
        lost = await load.collect(quiet_s=_QUIET_S)
        took_s = time.monotonic() - begun_s
    bench.console.print(
        f"  {kills} kills; the last outcome came {took_s:.1f} s after the last request", highlight=False
    )
    for id_ in sorted(lost)[:10]:
        bench.console.print(f"  lost: {id_}", highlight=False)
    conflicting = [id_ for id_ in load.accepted if _conflict(load.outcomes[id_], id_)]
    for id_ in conflicting[:10]:
        bench.console.print(f"  conflicting: {id_}: {load.outcomes[id_]}", highlight=False, markup=False)
    return {
        "chaos_accepted": len(load.accepted),
        "chaos_lost": len(lost),
        "chaos_conflicting": len(conflicting),
        "chaos_duplicates": sum(max(0, len(load.outcomes[id_]) - 1) for id_ in load.accepted),
        "chaos_catch_up_s": took_s,
    }


def _replacement(stack: Stack, kills: int) -> contextlib.AbstractAsyncContextManager[Program]:
    return worker_beside(stack, f"worker-{_WORKERS + kills}")


async def _first_outcome(load: TopicLoad) -> None:
    end_s = time.monotonic() + _FIRST_S
    while not load.outcomes:
        load.check()
        if time.monotonic() > end_s:
            raise BenchmarkError(f"no outcome came within {_FIRST_S:g} s")
        await asyncio.sleep(0.05)


def _conflict(told: list[Told], id_: str) -> bool:
    """Whether an id has outcomes that differ, or one that is not what was asked for."""
    number = int(id_.rpartition("-")[2])
    if number % _STORED_EVERY == 0 and len({(one.state, one.value) for one in told}) > 1:
        return True
    return len({_answer(one) for one in told} | {(JobState.SUCCEEDED, float(number))}) > 1 if told else False


def _answer(told: Told) -> tuple[JobState, object]:
    if told.state is not JobState.SUCCEEDED:
        return told.state, told.value
    [output] = decode_response(told.value, told.header_length).outputs
    return told.state, output.to_list()[0]
