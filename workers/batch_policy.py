"""BatchPolicy: how the batches of one model are formed, as the Batcher reads it. Pure; knows no queue and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # types only: at run time this file imports nothing
    from workers.model_config import ModelConfig, QueuePolicy

HIGHEST_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """How batches of one model are formed.

    `max_batch_rows` >= 1. `max_queue_delay_us` 0: never wait on purpose. `preferred_rows`: sizes to close a batch at
    while the delay has not run out; the largest of them counts as full, none given means `max_batch_rows`. `alone`:
    every request is a batch of its own, as for a model without dynamic batching.

    `priority_levels` 0: there are none, and what a request asks for is ignored. A request that names no level, or one
    that does not exist, has `default_priority_level`. `age_bound_us`: one that has waited longer counts as of the
    highest level, whatever its own. The default of a second is longer than a full queue of a model that keeps up takes
    to clear, so that strictness is not felt as age, and shorter than callers' usual patience of many seconds.
    `queue_policies` are by level; a level without one has `default_queue_policy`.
    """

    max_batch_rows: int
    max_queue_delay_us: int = 0
    preferred_rows: tuple[int, ...] = ()
    alone: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    age_bound_us: int = 1_000_000
    default_queue_policy: QueuePolicy | None = None
    queue_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @property
    def full_rows(self) -> int:
        """The size at which waiting any longer gains nothing."""
        if self.alone:
            return 1
        return max(self.preferred_rows, default=self.max_batch_rows)

    @property
    def is_ranked(self) -> bool:
        """Whether requests differ in level, or may be refused or delayed by a queue policy."""
        return self.priority_levels > 0 or self.default_queue_policy is not None or bool(self.queue_policies)

    def level(self, priority: int) -> int:
        """The level of a request that asks for `priority`; HIGHEST_LEVEL where there are none."""
        if not self.priority_levels:
            return HIGHEST_LEVEL
        if HIGHEST_LEVEL <= priority <= self.priority_levels:
            return priority
        return self.default_priority_level or self.priority_levels

    def queue_policy(self, level: int) -> QueuePolicy | None:
        """What holds for requests of a level; None: nothing."""
        return self.queue_policies.get(level, self.default_queue_policy)

    def timeout_us(self, level: int, own_us: int) -> int:
        """How long a request may wait, 0 without end. `own_us` is what the request asks for, 0 nothing.

        Where the policy lets requests override it, they can only shorten its timeout; where it has none, theirs counts.
        """
        policy = self.queue_policy(level)
        if policy is None:
            return 0
        if policy.allow_timeout_override and own_us > 0:
            return min(own_us, policy.default_timeout_us or own_us)
        return policy.default_timeout_us


def batch_policy(config: ModelConfig) -> BatchPolicy:
    """How the model's requests are batched; without a batch dimension each runs alone."""
    default = config.default_queue_policy
    is_default_empty = not (default.default_timeout_us or default.allow_timeout_override or default.max_queue_size)
    return BatchPolicy(
        max_batch_rows=max(1, config.max_batch_size),
        max_queue_delay_us=config.max_queue_delay_us if config.dynamic_batching else 0,
        preferred_rows=config.preferred_batch_sizes,
        alone=not config.dynamic_batching,
        priority_levels=config.priority_levels,
        default_priority_level=config.default_priority_level,
        default_queue_policy=None if is_default_empty else default,
        queue_policies=config.queue_policies,
    )
