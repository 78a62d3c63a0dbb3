"""Waiter: a request in flight, and the ways in which its wait can end. Knows no HTTP and no Kafka client."""

from __future__ import annotations

import asyncio

from gateway.broker import REQUEST_TIMEOUT_S, Record
from gateway.outbox import Handed
from schemas.errors import ErrorCode, InferenceError


class MayRunError(InferenceError):
    """The request was handed to Kafka and nobody knows whether it was taken."""


class Waiter:
    """A request in flight. Times are the event loop's, in seconds."""

    __slots__ = ("deadline_s", "future", "give_up_s", "handed", "timer")

    def __init__(self, future: asyncio.Future[Record | None], give_up_s: float, deadline_s: float) -> None:
        self.future = future  # the reply; None: the wait is spent and the broker has acknowledged
        self.give_up_s = give_up_s
        self.deadline_s = deadline_s  # for the acknowledgement
        self.handed: Handed | None = None
        self.timer: asyncio.TimerHandle | None = None

    def note_end(self, handed: Handed) -> None:
        """The broker has taken the record, or it has failed."""
        if self.future.done():
            return
        if handed.error is not None:
            self.future.set_exception(not_taken(handed.error))
        elif self.future.get_loop().time() >= self.give_up_s:
            self.future.set_result(None)

    def look(self) -> None:
        """End what has run out of time, and look again when the next time runs out."""
        if self.future.done():
            return
        loop = self.future.get_loop()
        now_s = loop.time()
        acknowledged = self.handed is not None and self.handed.has_ended
        if acknowledged and now_s >= self.give_up_s:
            self.future.set_result(None)
        elif not acknowledged and now_s >= self.deadline_s:
            self.future.set_exception(not_acknowledged())
        else:  # without an acknowledgement only that decides between a job id and a failure
            if self.timer is not None:
                self.timer.cancel()
            self.timer = loop.call_at(self.give_up_s if acknowledged else self.deadline_s, self.look)


def not_taken(cause: BaseException, kind: type[InferenceError] = MayRunError) -> InferenceError:
    """Kafka has refused the request, or not answered: then it may have it all the same."""
    error = kind(ErrorCode.UNAVAILABLE, f"Kafka did not take the request: {cause!r}", remedy="try again in a moment")
    error.__cause__ = cause
    return error


def not_acknowledged() -> InferenceError:
    """Kafka has not answered in time."""
    return MayRunError(
        ErrorCode.UNAVAILABLE,
        f"Kafka did not acknowledge the request within {REQUEST_TIMEOUT_S:g} s; it may run nevertheless",
        remedy="try again in a moment",
    )


def too_late() -> InferenceError:
    """The request was not handed over, for that took too long."""
    return InferenceError(ErrorCode.UNAVAILABLE, "handing the request over took too long", remedy="try again")
