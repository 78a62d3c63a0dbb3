"""`python -m tests.benchmarks.engine`: the worker engine's benchmarks, against one broker. See BENCHMARKS.md."""

from __future__ import annotations

import sys

from tests.benchmarks.engine_figures import ENGINE
from tests.benchmarks.suite import run

_MODULES = {
    "bisect": "engine_bisect",
    "simulator": "batching_sim",
    "download": "engine_download",
    "cold_start": "engine_cold_start",
    "hot_set": "engine_hot_set",
    "rebalance": "engine_rebalance",
    "chaos": "engine_chaos",
}

if __name__ == "__main__":
    sys.exit(run(ENGINE, _MODULES, "engine.json"))
