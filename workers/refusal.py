"""Refusal: why a queued request is answered without having been run. Knows no error codes; the lane chooses those."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """A reason; the value is its name in metrics and logs."""

    EXPIRED = "expired"  # its deadline has passed
    UNSTARTED = "unstarted"  # the moment by which it had to begin has passed
    HOPELESS = "hopeless"  # its deadline passes before even a batch of it alone could end
    OVERLOADED = "overloaded"  # there is more than can be met, and serving this one would cost more than one other
    TIMED_OUT = "timed_out"  # it waited longer than its level's queue policy allows
    QUEUE_FULL = "queue_full"  # its level's queue held as many as it may
