"""Made-up requests: from the OpenAPI document by schemathesis, damaged v2 bodies, damaged gRPC requests.

A fault is a request that is answered by an internal error or not at all, and what is left behind when all are answered.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import uvloop

from tests.benchmarks.bench import Bench
from tests.benchmarks.raw_http import NoAnswer, RawHttp
from tests.benchmarks.rows import IDENTITY_CONFIG
from tests.benchmarks.stack import Program
from tests.benchmarks.v2_mutations import DamagedRequest, damaged_requests

_CALLERS = 16
_HTTP_SHARE = 0.5
_SHOWN = 5


class Verdicts:
    """What came of the requests; `faults` are told as they are, the first few."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.cases = 0
        self.faults = 0
        self.answers: Counter[str] = Counter()

    def note(self, answer: str, *, is_fault: bool, told: object = "") -> None:
        """One request's end."""
        self.cases += 1
        self.answers[answer] += 1
        if is_fault:
            self.faults += 1
            if self.faults <= _SHOWN:
                self._bench.console.print(f"  fault: {answer} for {told!r:.2000}", markup=False, highlight=False)


def measure(bench: Bench) -> None:
    """fuzz_*."""
    stack = bench.stack("bench-fuzz", {"identity": IDENTITY_CONFIG})
    seed = random.SystemRandom().randrange(1 << 32) if bench.seed is None else bench.seed
    bench.console.print(f"  seed {seed}", highlight=False)
    with stack.both(wait_s="5") as (gateway, _):
        verdicts = Verdicts(bench)
        damage_http(gateway, verdicts, int(bench.fuzz_cases * _HTTP_SHARE), seed)
        told = ", ".join(f"{answer}: {count}" for answer, count in verdicts.answers.most_common())
        bench.console.print(f"  {told}", highlight=False, soft_wrap=True)
        bench.runs["fuzz_cases"].append(verdicts.cases)
        bench.runs["fuzz_faults"].append(verdicts.faults)


def damage_http(gateway: Program, verdicts: Verdicts, cases: int, seed: int) -> None:
    """Damaged v2 requests to the infer route."""
    requests = damaged_requests(seed, "identity")
    uvloop.run(_send_all(gateway, verdicts, (next(requests) for _ in range(cases))))


async def _send_all(gateway: Program, verdicts: Verdicts, requests: Iterator[DamagedRequest]) -> None:
    async def call() -> None:
        async with RawHttp(gateway.port) as http:
            for request in requests:
                try:
                    status, body = await http.send("POST", request.path, request.headers, request.body)
                except NoAnswer as error:
                    verdicts.note("no answer", is_fault=True, told=(request, error))
                    continue
                verdicts.note(str(status), is_fault=status == 500, told=(request, body))

    await asyncio.gather(*(call() for _ in range(_CALLERS)))
