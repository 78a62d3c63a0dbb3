"""Batcher: forms the micro-batches of one model version. Pure: the clock is passed in, nothing here waits.

`add` a request, ask `next_due` when to look again, `cut` a batch, `take_refused` what must be answered without being
run. Times are microseconds of one monotonic clock; a request's age counts from its arrival at the broker (see
arrival.py). Must not know Kafka, tensors, threads or asyncio.

Rules (design section 6): a batch is cut when it is full (or reaches the largest preferred size), when its oldest
request has waited `max_queue_delay_us` since its arrival, or when waiting longer would break a deadline; and an
instance is free. While every instance is busy only full batches leave, so that they can be prepared ahead; anything
smaller keeps growing. Requests are grouped by signature, so that another shape neither closes nor poisons a batch.
Of the groups that may leave, that with the request of the highest level goes, and of those the oldest; a batch is
filled by level, and in the order in which requests came within a level. What has waited longer than the age bound
counts as of the highest level. How deadlines limit a batch is in batch_sizing.py; it takes a learnt duration.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from workers.admission import Admission
from workers.batch_group import Group
from workers.batch_policy import BatchPolicy
from workers.batch_sizing import Durations, Sizing
from workers.clocks import Clocks, is_hopeless
from workers.entry import DELAYED_RANK, Entry
from workers.refusal import Refusal
from workers.timetable import NEVER_US

__all__ = ["BatchPolicy", "Batcher", "Entry", "Refusal"]

T = TypeVar("T")

# Of the estimated duration, kept in hand when a batch leaves early for a deadline: timers are late, durations vary.
_HASTE = 8
# So many full batches away must the nearest deadline be for a batch to be prepared while another one runs.
_AHEAD_BATCHES = 10
# After so many hopeless ones in a row with no batch between them one is run: else a wrong estimate would stay wrong.
_HOPELESS_IN_A_ROW = 32


class Batcher(Generic[T]):
    """The queue of one model version. Not thread-safe: it belongs to the event loop.

    What several calls take: `instance_free`: something can run a batch at once. `durations`: the learnt duration of the
    instance that a batch is for; None where nothing is known, and then deadlines neither limit a batch nor hurry it.
    `limit_rows`: what batches may have at most for now, below `max_batch_rows`, as after memory ran out; a request
    that has more rows rides alone.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self._max_rows = policy.max_batch_rows
        self._full_rows = policy.full_rows
        self._is_ranked = policy.is_ranked
        self._groups: dict[Hashable, Group[T]] = {}
        self._clocks: Clocks[T] = Clocks()
        self._deadlines = self._clocks.deadlines
        self._admission: Admission[T] = Admission(policy)
        self._refused: list[tuple[Entry[T], Refusal]] = []
        self._delayed_rows = 0
        self.is_timed = False  # whether any moment was ever noted: spares the others looking
        self._hopeless = 0
        self.rows = 0
        self.requests = 0

    def add(self, entry: Entry[T]) -> Refusal | None:
        """Queue a request of 1 to `max_batch_rows` rows. Raises ValueError for any other number.

        Returns QUEUE_FULL where the queue policy has no room for it: then it is not queued, and is the caller's.
        """
        rows = entry.rows
        if not 0 < rows <= self._max_rows:
            raise ValueError(f"a request of {rows} rows cannot ride in batches of 1 to {self._max_rows}")
        if self._is_ranked and not self._admission.admit(entry):
            return Refusal.QUEUE_FULL
        group = self._groups.get(entry.signature)
        if group is None:
            group = self._groups[entry.signature] = Group(entry.signature)
        if self._is_ranked:
            group.append(entry)
            self.is_timed = True
        else:
            group.entries.append(entry)
        group.rows += rows
        self.rows += rows
        self.requests += 1
        if entry.deadline_us is not None or entry.start_by_us is not None:
            self._clocks.put(entry)
            self.is_timed = True
        return None

    def queued(self) -> list[Entry[T]]:
        """What is in the queue now, to be looked at."""
        return [entry for group in self._groups.values() for entry in group.in_order(-NEVER_US)]

    def remove(self, entry: Entry[T]) -> bool:
        """Take a request out, for example one that was cancelled. False if it had left already."""
        if entry.gone:
            return False
        self._leave(self._groups[entry.signature], entry)
        return True

    def take_all(self) -> list[Entry[T]]:
        """Take everything out, also what was refused and not taken yet: as when the model cannot be loaded."""
        taken = [entry for entry, _ in self._refused]
        self._refused.clear()
        for entry in self.queued():
            self._leave(self._groups[entry.signature], entry)
            taken.append(entry)
        return taken

    def take_refused(
        self,
        now_us: int,
        *,
        instance_free: bool = True,
        durations: Durations | None = None,
        free_us: int | None = None,
    ) -> list[tuple[Entry[T], Refusal]]:
        """Take out every request that is not to be run any more, with the reason. They must be answered.

        EXPIRED: the deadline has passed. UNSTARTED: it had to begin by now. TIMED_OUT: its queue policy rejects it.
        HOPELESS: its deadline passes before a batch of it alone could end, started at once, or at `free_us` where that
        is known and to come. OVERLOADED: see batch_sizing.py; `cut` decides that.
        """
        if not self.is_timed:
            return []
        self._advance(now_us)
        if durations is not None:
            start_us = now_us if free_us is None else max(now_us, free_us)
            while (entry := self._deadlines.first()) is not None and is_hopeless(entry, start_us, durations):
                if not self._give_up(entry, instance_free):
                    break
        refused, self._refused = self._refused, []
        return refused

    def next_due(
        self, *, instance_free: bool = True, durations: Durations | None = None, limit_rows: int | None = None
    ) -> int | None:
        """When to call `take_refused` and `cut` again if nothing changes before. None: not before a change.

        While no instance is free only refusals matter: nothing that is due could leave. Calls at that moment, or later,
        take out or delay something.
        """
        if not self.rows:
            return None
        due_us = self._next_refusal_us(durations) if self.is_timed else NEVER_US
        if instance_free:
            oldest_us = min(group.oldest_us() for group in self._groups.values() if self._may_leave(group))
            due_us = min(due_us, oldest_us + self.policy.max_queue_delay_us)
            due_us = min(due_us, self._urgent(durations, self._cap_rows(limit_rows))[0])
        return None if due_us == NEVER_US else due_us

    def cut(
        self,
        now_us: int,
        *,
        instance_free: bool = True,
        flush: bool = False,
        durations: Durations | None = None,
        limit_rows: int | None = None,
    ) -> list[Entry[T]] | None:
        """The next batch in the order of riding, or None if none may leave now.

        Without an instance that is free only a full batch leaves, and none while a deadline or timeout is near: it
        could pass before the batch runs. Near is within ten full batches, or any if durations are not known.
        `flush`: whatever is queued leaves without waiting for its delay, as a drain wants. What is expired, timed out
        or refused for the batch's sake is not in it; `take_refused` hands it out, so call that afterwards too.
        """
        if not self.rows:
            return None
        cap_rows = self._cap_rows(limit_rows)
        if self.is_timed:
            return self._cut_timed(now_us, cap_rows, durations, instance_free=instance_free, flush=flush)
        group = self._choose(now_us, cap_rows, instance_free, flush)
        return None if group is None else self._take(group, self._size_rows(group, now_us, cap_rows, flush))

    def _cut_timed(
        self, now_us: int, cap_rows: int, durations: Durations | None, *, instance_free: bool, flush: bool
    ) -> list[Entry[T]] | None:
        self._advance(now_us)
        if not instance_free and not self._may_prepare(now_us, durations, cap_rows):
            return None
        urgent_us, nearest = self._urgent(durations, cap_rows)
        urgent = nearest if urgent_us <= now_us else None
        is_known = durations is not None and durations.estimate_us(1) is not None
        while (group := self._choose(now_us, cap_rows, instance_free, flush, urgent)) is not None:
            limit_rows = self._size_rows(group, now_us, cap_rows, flush or group is urgent)
            if durations is not None and is_known and self._deadlines.first() is not None:
                batch = self._fit(group, now_us, limit_rows, durations, instance_free)
            else:
                batch = self._take_ranked(group, now_us, limit_rows)
            if batch:
                self._hopeless = 0
                return batch
        return None

    def _size_rows(self, group: Group[T], now_us: int, cap_rows: int, overdue: bool) -> int:
        """The most rows of the group's batch: a preferred size, but not when it must leave now anyway."""
        if overdue or not self.policy.preferred_rows:
            return cap_rows
        if group.oldest_us() + self.policy.max_queue_delay_us <= now_us:
            return cap_rows
        return min(cap_rows, self._full_rows)

    def _cap_rows(self, limit_rows: int | None) -> int:
        return self._max_rows if limit_rows is None else max(1, min(limit_rows, self._max_rows))

    def _advance(self, now_us: int) -> None:
        """Refuse what has expired; refuse or delay what has waited too long."""
        while self.is_timed and (passed := self._clocks.take_passed(now_us)) is not None:
            self._refuse(*passed)
        while (entry := self._admission.timeouts.take_due(now_us)) is not None:
            if self._admission.is_to_reject(entry):
                self._refuse(entry, Refusal.TIMED_OUT)
                continue
            entry.level = DELAYED_RANK
            group = self._groups[entry.signature]
            group.append(entry)
            group.delayed_rows += entry.rows
            self._delayed_rows += entry.rows

    def _next_refusal_us(self, durations: Durations | None) -> int:
        waits_us = self._admission.timeouts.first_us()
        return min(self._clocks.next_refusal_us(durations), waits_us) if self.is_timed else waits_us

    def _urgent(self, durations: Durations | None, cap_rows: int) -> tuple[int, Group[T] | None]:
        """When which group must leave as it is then, to begin in time or to meet its nearest deadline."""
        if not self.is_timed:
            return NEVER_US, None
        start_us, first = self._clocks.first_to_start()
        urgent = None if first is None else self._groups[first.signature]
        nearest = self._deadlines.first()
        if nearest is None or nearest.is_delayed or durations is None:
            return start_us, urgent
        group = self._groups[nearest.signature]
        rows = nearest.rows if self.policy.alone else max(nearest.rows, min(group.rows, cap_rows))
        took_us = durations.estimate_us(rows)
        if took_us is None:
            return start_us, urgent
        leave_us = self._deadlines.first_us() - took_us - took_us // _HASTE
        return (leave_us, group) if leave_us < start_us else (start_us, urgent)

    def _may_prepare(self, now_us: int, durations: Durations | None, cap_rows: int) -> bool:
        took_us = durations.estimate_us(cap_rows) if durations is not None else None
        near_us = NEVER_US if took_us is None else now_us + _AHEAD_BATCHES * took_us
        return self._next_refusal_us(None) >= near_us

    def _may_leave(self, group: Group[T]) -> bool:
        """False for a group of delayed requests only, while there are others."""
        return not self._delayed_rows or group.delayed_rows < group.rows or self._delayed_rows == self.rows

    def _choose(
        self, now_us: int, cap_rows: int, instance_free: bool, flush: bool, urgent: Group[T] | None = None
    ) -> Group[T] | None:
        full_rows = min(self._full_rows, cap_rows)
        overdue_us = now_us - self.policy.max_queue_delay_us
        best: Group[T] | None = None
        best_rank: tuple[int, int] | None = None
        for group in self._groups.values():
            oldest_us = group.oldest_us()
            is_due = instance_free and (flush or oldest_us <= overdue_us or group is urgent)
            if (group.rows < full_rows and not is_due) or not self._may_leave(group):
                continue
            rank = (1, oldest_us)
            if self._is_ranked:
                aged_us = now_us - self.policy.age_bound_us
                first = next(group.in_order(aged_us))
                rank = (first.rank(aged_us), first.arrived_us)
            if best_rank is None or rank < best_rank:
                best, best_rank = group, rank
        return best

    def _take(self, group: Group[T], limit_rows: int) -> list[Entry[T]]:
        """Take a batch out of a group where neither levels nor deadlines matter: the fast way."""
        before_rows = group.rows
        batch = group.take(limit_rows, alone=self.policy.alone)
        self.rows -= before_rows - group.rows
        self.requests -= len(batch)
        if not group.rows:
            del self._groups[group.signature]
        return batch

    def _take_ranked(self, group: Group[T], now_us: int, limit_rows: int) -> list[Entry[T]]:
        """Take a batch out of a group by level."""
        batch: list[Entry[T]] = []
        rows = 0
        for entry in group.in_order(now_us - self.policy.age_bound_us):
            if batch and (self.policy.alone or rows + entry.rows > limit_rows):
                break
            batch.append(entry)
            rows += entry.rows
        for entry in batch:
            self._leave(group, entry)
        return batch

    def _fit(
        self, group: Group[T], now_us: int, limit_rows: int, durations: Durations, instance_free: bool
    ) -> list[Entry[T]]:
        """Take a batch out of a group that meets its deadlines; refuses what is in the way of that. May be empty."""
        aged_us = now_us - self.policy.age_bound_us
        sizing = Sizing(start_us=now_us, cap_rows=limit_rows, durations=durations, aged_us=aged_us)
        while True:
            queued: list[Entry[T]] = []
            rows = 0
            for entry in group.in_order(aged_us):
                if is_hopeless(entry, now_us, durations) and self._give_up(entry, instance_free):
                    continue
                queued.append(entry)
                rows += entry.rows
                if rows >= 2 * limit_rows or self.policy.alone:
                    break
            sized = sizing.size(queued, is_overloaded=group.is_overloaded)
            group.is_overloaded = sized.is_overloaded
            for entry in sized.refused:
                self._refuse(entry, Refusal.OVERLOADED)
            if not sized.refused or rows < 2 * limit_rows:  # else there may be more to fill the batch with
                break
        for entry in sized.batch:
            self._leave(group, entry)
        return sized.batch

    def _give_up(self, entry: Entry[T], instance_free: bool) -> bool:
        """Refuse a hopeless request, or let it run because the estimate has refused all for a while."""
        if instance_free and self.requests == 1 and self._hopeless >= _HOPELESS_IN_A_ROW:
            return False
        self._hopeless += 1
        self._refuse(entry, Refusal.HOPELESS)
        return True

    def _refuse(self, entry: Entry[T], reason: Refusal) -> None:
        self._leave(self._groups[entry.signature], entry)
        self._refused.append((entry, reason))

    def _leave(self, group: Group[T], entry: Entry[T]) -> None:
        entry.gone = True
        rows = entry.rows
        group.rows -= rows
        self.rows -= rows
        self.requests -= 1
        if entry.is_delayed:
            group.delayed_rows -= rows
            self._delayed_rows -= rows
        if self._is_ranked:
            self._admission.leave(entry)
        if not group.rows:
            del self._groups[group.signature]
