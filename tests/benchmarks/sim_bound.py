"""An upper bound of what any schedule can answer within the SLO, also one that knows the future.

Why none can beat it. All requests have the same SLO, so request i arrives at r[i] and must be answered by
r[i] + SLO, both ascending in i. Take those of the requests i..j that a schedule answers in time. Each ran in a batch
that began no earlier than r[i] and ended by r[j] + SLO. So all their batches lie within T = r[j] + SLO - r[i], on each
instance one after the other. An instance that fits m batches into T answers at most min(m * max_rows, (T - m * b) / a)
requests there, for m batches of n rows in all take a * n + m * b. Let N(T) be the largest of that over m; it is found
at m = T / (a * max_rows + b) rounded down, or one more: before, another full batch fits; after, every further one only
costs its b. So of the requests i..j at most c(i, j) = instances * N(r[j] + SLO - r[i]) are answered in time.

Let P[j] be the most that can be answered of the first j, if nothing but these limits held. P[j] <= P[j - 1] + 1, and
P[j] <= P[i - 1] + c(i, j) for every i: the recursion below takes the least of them. By induction no schedule has more.

It is a relaxation: a batch there need not wait for its last request to arrive. What it grants too much is about one
batch's duration at the start of each busy time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.benchmarks.sim_device import Device

Counts = npt.NDArray[np.int64]


def most_on_time(arrivals: Sequence[int], device: Device) -> int:
    """No schedule answers more of these requests within the SLO. Quadratic, in numpy: about a second for 20,000."""
    arrived_us = np.asarray(arrivals, dtype=np.int64)
    best: Counts = np.zeros(len(arrivals) + 1, dtype=np.int64)
    for last in range(len(arrivals)):
        spans_us = arrived_us[last] + device.slo_us - arrived_us[: last + 1]
        limits = best[: last + 1] + device.instances * _fits(spans_us, device)
        best[last + 1] = min(best[last] + 1, int(limits.min()))
    return int(best[-1])


def _fits(spans_us: Counts, device: Device) -> Counts:
    """The most requests that one instance answers within each span."""
    full = spans_us // device.run_us(device.max_rows)
    one_more = (spans_us - (full + 1) * device.base_us) // device.row_us
    most: Counts = np.maximum(full * device.max_rows, one_more)
    return most
