"""Interpreter: how Python itself is set for a process that runs models. Knows nothing of what runs."""

from __future__ import annotations

import gc
import sys

# Python hands the interpreter over between threads every 5 ms by default, as long as a small model runs; a model's
# thread that comes back from its device must not wait so long for the loop, nor the loop for it.
_SWITCH_INTERVAL_S = 0.0005
_YOUNG_OBJECTS = 10_000  # 700 by default; more would make each collection a pause that callers notice


def tune_interpreter() -> None:
    """Hand over between threads more often, and make the cycle collector leave alone what lives for ever.

    Requests are trees without cycles; walking them every 700 allocations took an eighth of a worker's time.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
