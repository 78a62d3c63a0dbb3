"""Assembly: puts the requests of a batch together as the arrays that its instance takes, and hands them over.

Small batches on the event loop, where it takes less than telling a thread; large ones in a thread. Decides nothing
about who rides in a batch. Knows no queue and no Kafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from workers.batch import Arrays
from workers.batch_layout import BatchLayout
from workers.batch_run import Batch, Finished
from workers.instance import Instance

_INLINE_BYTES = 256 * 1024  # about 20 us of copying; beyond it a thread does it


class Assembly:
    """One model version's. Lives on the event loop."""

    def __init__(
        self,
        layout: BatchLayout,
        *,
        tasks: asyncio.TaskGroup,
        on_finished: Callable[[Instance, Finished], None],
        on_abandoned: Callable[[Batch, Arrays], None],
    ) -> None:
        """`on_abandoned`: the instance was given up while a thread put the batch together; it is to run elsewhere."""
        self._layout = layout
        self._tasks = tasks
        self._on_finished = on_finished
        self._on_abandoned = on_abandoned

    def submit(self, instance: Instance, batch: Batch, arrays: Arrays | None) -> None:
        """Have a batch run; `arrays` None: it is to be put together."""
        if arrays is not None:
            self._hand_over(instance, batch, arrays)
        elif sum([work.size_bytes for work in batch.works]) <= _INLINE_BYTES:
            self._hand_over(instance, batch, self._assembled(batch))
        else:
            self._tasks.create_task(self._assemble(instance, batch), name="assemble batch")

    def _assembled(self, batch: Batch) -> Arrays:
        return self._layout.assemble([work.request for work in batch.works], batch.total_rows)

    async def _assemble(self, instance: Instance, batch: Batch) -> None:
        arrays = await asyncio.to_thread(self._assembled, batch)
        if instance.is_abandoned:
            self._on_abandoned(batch, arrays)
        else:
            self._hand_over(instance, batch, arrays)

    def _hand_over(self, instance: Instance, batch: Batch, arrays: Arrays) -> None:
        batch.assembled_us = time.monotonic_ns() // 1000
        instance.submit(batch, arrays, lambda finished: self._on_finished(instance, finished))
