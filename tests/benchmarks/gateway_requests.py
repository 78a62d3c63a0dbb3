"""What a request costs the gateway: synchronous, as a job, by gRPC, beside the bare server; 64 outstanding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.benchmarks.bare_asgi import bare_server
from tests.benchmarks.bench import Bench
from tests.benchmarks.floor import warm_up
from tests.benchmarks.grpc_load import infer as infer_by_grpc
from tests.benchmarks.load import Load, ensure_wrk, post
from tests.benchmarks.rows import IDENTITY_CONFIG, row_body
from tests.benchmarks.stack import Program, Stack

_PATH = "/v2/models/identity/infer"
_MANY = 64


@dataclass(frozen=True)
class _Scene:
    """Everything that is measured, running. `submits` takes jobs that no worker runs meanwhile."""

    bench: Bench
    gateway: Program
    submits: Program
    bare: Program

    def one_round(self) -> dict[str, float]:
        """What is compared comes one after the other."""
        bare, bare_cpu_us = _costs(self.bare, lambda: self._post(self.bare))
        sync, sync_cpu_us = _costs(self.gateway, lambda: self._post(self.gateway))
        grpc, grpc_cpu_us = _costs(self.gateway, self._infer_by_grpc)
        submit, submit_cpu_us = _costs(self.submits, lambda: self._post(self.submits, {"Prefer": "respond-async"}))
        return {
            "bare_asgi_c64_rps": bare.rps,
            "bare_asgi_cpu_us": bare_cpu_us,
            "sync_c64_rps": sync.rps,
            "gateway_cpu_us": sync_cpu_us,
            "grpc_c64_rps": grpc.rps,
            "grpc_cpu_us": grpc_cpu_us,
            "submit_c64_rps": submit.rps,
            "submit_cpu_us": submit_cpu_us,
        }

    def _post(self, server: Program, headers: Mapping[str, str] | None = None) -> Load:
        url = f"http://127.0.0.1:{server.port}{_PATH}"
        return post(url, row_body(), outstanding=_MANY, run_s=self.bench.run_s, headers=headers or {})

    def _infer_by_grpc(self) -> Load:
        port = self.gateway.read("grpc_port")
        return infer_by_grpc(f"127.0.0.1:{port}", "identity", outstanding=_MANY, run_s=self.bench.run_s)


def measure(bench: Bench) -> None:
    """bare_asgi_*, sync_c64_rps, gateway_cpu_us, grpc_*, submit_*."""
    ensure_wrk()
    warm_up(bench.bootstrap, log=bench.directory / "warm-up.log", run_s=4 * bench.run_s)
    with _scene(bench) as scene:
        bench.repeat(scene.one_round)


def announce(stack: Stack) -> None:
    """Make the stack's models known, without a worker that runs."""
    with stack.command("announce", ["-m", "workers", "announce"]) as announcing:
        announcing.end()


def _costs(server: Program, run: Callable[[], Load]) -> tuple[Load, float]:
    """A load, and the microseconds of the server's processor time that each of its requests took."""
    before_s = server.cpu_s()
    load = run()
    return load, 1e6 * (server.cpu_s() - before_s) / load.requests


@contextlib.contextmanager
def _scene(bench: Bench) -> Iterator[_Scene]:
    serving = bench.stack("bench-requests", {"identity": IDENTITY_CONFIG})
    submitting = bench.stack("bench-submits", {"identity": IDENTITY_CONFIG})
    announce(submitting)
    with (
        serving.both(grpc_port="0") as (gateway, _),
        submitting.gateway(grpc_port="0") as submits,
        bare_server(log=bench.directory / "bare.log") as bare,
    ):
        submits.await_answer("/v2/models/identity/ready")
        yield _Scene(bench, gateway, submits, bare)
