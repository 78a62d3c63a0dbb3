"""Arrivals of the batching simulator: when requests come, in microseconds. Deterministic by seed.

Knows neither devices nor rules. Each pattern has the same mean rate, and differs in how the rate moves.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Arrivals = list[int]


def poisson(rate_s: float, length_s: float, seed: int) -> Arrivals:
    """A steady rate, independent requests."""
    return _thinned(rate_s, lambda _: 1.0, length_s, seed)


def bursty(rate_s: float, length_s: float, seed: int) -> Arrivals:
    """On and off: bursts at three times the mean rate, 0.5 s long on average, with silence of 1 s between them."""
    chance = random.Random(seed)
    arrivals: Arrivals = []
    at_s = 0.0
    while at_s < length_s:
        end_s = min(length_s, at_s + chance.expovariate(1 / 0.5))
        while (at_s := at_s + chance.expovariate(3 * rate_s)) < end_s:
            arrivals.append(round(at_s * 1e6))
        at_s = end_s + chance.expovariate(1 / 1.0)
    return arrivals


def diurnal(rate_s: float, length_s: float, seed: int) -> Arrivals:
    """A day in `length_s`: the rate swings between a fifth of the mean at night and 1.8 times the mean at noon."""
    return _thinned(rate_s * 1.8, lambda at_s: (1 - 0.8 * math.cos(math.tau * at_s / length_s)) / 1.8, length_s, seed)


PATTERNS: dict[str, Callable[[float, float, int], Arrivals]] = {
    "poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
}


def _thinned(peak_s: float, share: Callable[[float], float], length_s: float, seed: int) -> Arrivals:
    """A Poisson process whose rate is `peak_s` times `share` of the moment."""
    chance = random.Random(seed)
    arrivals: Arrivals = []
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(peak_s)) < length_s:
        if chance.random() < share(at_s):
            arrivals.append(round(at_s * 1e6))
    return arrivals
