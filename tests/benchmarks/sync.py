"""Synchronous requests: an identity model through gateway, Kafka and worker, beside the floor and the bare server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from tests.benchmarks.bare_asgi import bare_server
from tests.benchmarks.bench import Bench, shown
from tests.benchmarks.floor import echo, round_trips
from tests.benchmarks.load import Load, post
from tests.benchmarks.rows import IDENTITY_CONFIG, row_body
from tests.benchmarks.stack import Program, cpu_s

_PATH = "/v2/models/identity/infer"
_MANY = 64


@dataclass(frozen=True)
class _Scene:
    """Everything that is measured, running."""

    bench: Bench
    gateway: Program
    worker: Program
    bare: Program

    def one_round(self) -> dict[str, float]:
        """What is compared comes one after the other."""
        floor_one = self._floor(1)
        sync_one = self.post(self.gateway, 1, self.bench.run_s)
        bare, bare_cpu = self._post_many(self.bare)
        sync, sync_cpu = self._post_many(self.gateway)
        floor_many = self._floor(_MANY)
        figures = {
            "floor_p50_ms": floor_one.p50_ms,
            "sync_p50_ms": sync_one.p50_ms,
            "bare_asgi_c64_rps": bare.rps,
            "sync_c64_rps": sync.rps,
            "sync_c64_p50_ms": sync.p50_ms,
            "sync_c64_p99_ms": sync.p99_ms,
            "floor_c64_rps": floor_many.rps,
            "bare_asgi_cpu_us": bare_cpu[self.bare.pid],
            "gateway_cpu_us": sync_cpu[self.gateway.pid],
            "worker_cpu_us": sync_cpu[self.worker.pid],
        }
        if self.bench.broker_pid is not None:
            figures["broker_cpu_us"] = sync_cpu[self.bench.broker_pid]
        return figures

    def post(self, server: Program, outstanding: int, run_s: int) -> Load:
        """Load on a server."""
        return post(f"http://127.0.0.1:{server.port}{_PATH}", row_body(), outstanding=outstanding, run_s=run_s)

    def pids(self) -> dict[str, int]:
        """Who runs."""
        pids = {"gateway": self.gateway.pid, "worker": self.worker.pid, "bare server": self.bare.pid}
        return pids if self.bench.broker_pid is None else {**pids, "broker": self.bench.broker_pid}

    def _post_many(self, server: Program) -> tuple[Load, dict[int, float]]:
        """Load by many, and by process the microseconds of processor that each request took."""
        pids = self.pids().values()
        before_s = {pid: cpu_s(pid) for pid in pids}
        load = self.post(server, _MANY, self.bench.run_s)
        return load, {pid: 1e6 * (cpu_s(pid) - before_s[pid]) / load.requests for pid in pids}

    def _floor(self, outstanding: int) -> Load:
        return round_trips(self.bench.bootstrap, outstanding=outstanding, run_s=self.bench.run_s)


def measure(bench: Bench) -> None:
    """floor_*, bare_asgi_*, sync_* and the processor time of each process."""
    with _scene(bench) as scene:
        bench.repeat(scene.one_round)


def hold(bench: Bench, hold_s: int) -> None:
    """Keep the load of 64 on the gateway for so long, after a warm-up, so that a profiler can be attached."""
    with _scene(bench) as scene:
        scene.post(scene.gateway, _MANY, bench.run_s)
        told = ", ".join(f"{name} {pid}" for name, pid in scene.pids().items())
        bench.console.print(f"  {hold_s} s of {_MANY} outstanding from now; process ids: {told}")
        load = scene.post(scene.gateway, _MANY, hold_s)
        bench.console.print(f"  {shown(load.rps)} requests/s, p50 {load.p50_ms:.2f} ms, p99 {load.p99_ms:.2f} ms")


@contextlib.contextmanager
def _scene(bench: Bench) -> Iterator[_Scene]:
    stack = bench.stack("bench-sync", {"identity": IDENTITY_CONFIG})
    with (
        stack.both() as (gateway, worker),
        bare_server(log=bench.directory / "bare.log") as bare,
        echo(bench.bootstrap, log=bench.directory / "echo.log"),
    ):
        yield _Scene(bench, gateway, worker, bare)
