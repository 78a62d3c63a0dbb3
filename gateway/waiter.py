"""Waiter: a request in flight, and the ways in which its wait can end. Knows no HTTP and no Kafka client."""

from __future__ import annotations

import asyncio

from gateway.kafka_client import REQUEST_TIMEOUT_S, Record
from gateway.outbox import Handed
from gateway.waiting_list import WaitingList
from schemas.errors import ErrorCode, InferenceError


class MayRunError(InferenceError):
    """The request was handed to Kafka and nobody knows whether it was taken."""


class Waiter:
    """A request in flight. Times are the event loop's, in seconds."""

    __slots__ = ("_list", "deadline_s", "future", "give_up_s", "handed", "slot")

    def __init__(
        self, future: asyncio.Future[Record | None], give_up_s: float, deadline_s: float, waiting: WaitingList
    ) -> None:
        self.future = future  # the reply; None: the wait is spent and the broker has acknowledged
        self.give_up_s = give_up_s
        self.deadline_s = deadline_s  # for the acknowledgement
        self.handed: Handed | None = None
        self.slot = 0
        self._list = waiting

    def note_end(self, handed: Handed) -> None:
        """The broker has taken the record, or it has failed."""
        if self.future.done():
            return
        if handed.error is not None:
            self.future.set_exception(not_taken(handed.error, has_left=handed.has_left))
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
            self.future.set_exception(not_acknowledged(self.handed))
        else:  # without an acknowledgement only that decides between a job id and a failure
            self._list.discard(self)
            self._list.add(self, self.give_up_s if acknowledged else self.deadline_s)


def not_taken(cause: BaseException, *, has_left: bool) -> InferenceError:
    """Kafka has refused the request, or not answered: if it has left the gateway, Kafka may have it all the same."""
    kind, fate = (MayRunError, "; it may run nevertheless") if has_left else (InferenceError, "")
    error = kind(
        ErrorCode.UNAVAILABLE, f"Kafka did not take the request: {cause!r}{fate}", remedy="try again in a moment"
    )
    error.__cause__ = cause
    return error


def not_acknowledged(handed: Handed | None) -> InferenceError:
    """Kafka has not answered in time. What has not left the gateway is taken back, so that it never runs."""
    never_runs = handed is not None and handed.withdraw()
    kind, fate = (
        (InferenceError, "it was taken back and will not run")
        if never_runs
        else (
            MayRunError,
            "it may run nevertheless",
        )
    )
    return kind(
        ErrorCode.UNAVAILABLE,
        f"Kafka did not acknowledge the request within {REQUEST_TIMEOUT_S:g} s; {fate}",
        remedy="try again in a moment",
    )


def away() -> InferenceError:
    """Kafka is known to be unreachable."""
    return InferenceError(
        ErrorCode.UNAVAILABLE,
        "Kafka cannot be reached at present; the request was not accepted",
        remedy="try again in a moment",
    )


def too_late() -> InferenceError:
    """The request was not handed over, for that took too long."""
    return InferenceError(ErrorCode.UNAVAILABLE, "handing the request over took too long", remedy="try again")
