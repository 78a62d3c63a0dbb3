"""Damage to bytes of any protocol. Pure: the random numbers are passed in."""

from __future__ import annotations

import random


def flip(rng: random.Random, body: bytes) -> bytes:
    """One bit turned."""
    if not body:
        return body
    at = rng.randrange(len(body))
    return body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :]


def cut(rng: random.Random, body: bytes) -> bytes:
    """Only its beginning."""
    return body[: rng.randrange(len(body) + 1)]


def grow(rng: random.Random, body: bytes) -> bytes:
    """Noise somewhere in it."""
    at = rng.randrange(len(body) + 1)
    return body[:at] + rng.randbytes(rng.choice((1, 4, 64, 1000))) + body[at:]
