"""ByteBudget: how many bytes of callers' bodies the gateway holds at a time. Pure.

Requests in flight are bounded in number; their bodies, each as large as allowed, would still be more than any memory.
"""

from __future__ import annotations

from schemas.errors import ErrorCode, InferenceError


class ByteBudget:
    """Counts bytes. What must be held anyway, such as an answer that a slow client has yet to read, counts too."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count what is held in any case; a negative size takes back."""
        self.used_bytes += size_bytes

    def hold(self) -> Held:
        """A share of it, empty at first."""
        return Held(self)


class Held:
    """One request's share. `release` once it is answered; idempotent."""

    __slots__ = ("_budget", "size_bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        """Hold so many bytes in all; less than now changes nothing.

        Raises InferenceError: PAYLOAD_TOO_LARGE for more than the whole budget, OVERLOADED for more than there is left.
        """
        more_bytes = size_bytes - self.size_bytes
        if more_bytes <= 0:
            return
        budget = self._budget
        if budget.used_bytes + more_bytes > budget.limit_bytes:
            raise _refusal(size_bytes, budget)
        budget.used_bytes += more_bytes
        self.size_bytes = size_bytes

    def shrink_to(self, size_bytes: int) -> None:
        """Hold no more than so many bytes."""
        if size_bytes < self.size_bytes:
            self._budget.used_bytes -= self.size_bytes - size_bytes
            self.size_bytes = size_bytes

    def release(self) -> None:
        """Give it back."""
        self.shrink_to(0)


def _refusal(size_bytes: int, budget: ByteBudget) -> InferenceError:
    if size_bytes > budget.limit_bytes:
        return InferenceError(
            ErrorCode.PAYLOAD_TOO_LARGE,
            f"the body has {size_bytes} bytes or more, this gateway holds {budget.limit_bytes} for all its callers",
            field="content-length",
            value=size_bytes,
            remedy="send less per request, or raise TIDEGATE_MAX_IN_FLIGHT_BYTES",
        )
    return InferenceError(
        ErrorCode.OVERLOADED,
        f"bodies of {budget.used_bytes} bytes are in flight, of {budget.limit_bytes} that this gateway holds",
        remedy="try again later, or send less per request",
    )
