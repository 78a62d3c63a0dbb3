"""`python -m tests.benchmarks.gateway`: the gateway's benchmarks, against one broker. See BENCHMARKS.md."""

from __future__ import annotations

import sys

from tests.benchmarks.gateway_figures import GATEWAY
from tests.benchmarks.suite import run

_MODULES = {
    "requests": "gateway_requests",
    "waiting": "gateway_waiting",
    "status": "gateway_status",
    "fuzz": "gateway_fuzz",
}

if __name__ == "__main__":
    sys.exit(run(GATEWAY, _MODULES, "gateway.json"))
