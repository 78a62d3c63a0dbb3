"""Sweeper: removes from the object store what is too old: outcomes, large values, idempotency keys, how
webhooks stand.

One gateway of all sweeps per period: whoever first writes the period's mark. A pass ends when its time is over and the
next one begins elsewhere, so that no pass is long and none of the prefixes starves. Knows no Kafka and no route.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import structlog

from gateway.key_claims import PREFIX as KEYS
from store.object_store import ObjectInfo, ObjectStore, StoreError

_log = structlog.get_logger(__name__)

_MARKS = "sweeps"
_SLACK_MS = 3_600_000  # after its time, for what is being read just then, and for clocks that differ
_HOUR_MS = 3_600_000
_DELETERS = 8
_YOUNG_IN_A_ROW = 200  # offsets are nearly in the order of time: behind so many young ones nothing is old
_SHARE = 0.5  # of a period may a pass take
_MAX_PASS_S = 300.0


class Sweep:
    """One pass over a store; synchronous, for a thread. `until_s` is by `time.monotonic`."""

    def __init__(self, store: ObjectStore, *, now_ms: int, until_s: float, rng: random.Random) -> None:
        self._store = store
        self._now_ms = now_ms
        self._until_s = until_s
        self._rng = rng
        self._deleters = ThreadPoolExecutor(_DELETERS, thread_name_prefix="sweep")
        self.removed = 0

    def run(self, *, results_ms: int, payloads_ms: int, keys_ms: int, webhooks_ms: int) -> int:
        """Remove what is older than these ages and some slack; how many objects that were. Raises StoreError."""
        steps: list[Callable[[], None]] = [
            lambda: self._places("outcomes", results_ms),
            lambda: self._places("claims/answers", results_ms),
            lambda: self._places("claims/results", payloads_ms),
            lambda: self._places("webhooks", webhooks_ms),
            lambda: self._hours("claims/requests", payloads_ms),
            lambda: self._flat("claims/dead", payloads_ms),
            lambda: self._keys(keys_ms),
            lambda: self._flat(_MARKS, _HOUR_MS),
        ]
        self._rng.shuffle(steps)
        with self._deleters:
            for step in steps:
                step()
        return self.removed

    def _places(self, prefix: str, age_ms: int) -> None:
        """Objects by topic, epoch and partition, in each by offset."""
        for topic in self._shuffled(f"{prefix}"):
            for epoch in self._shuffled(topic):
                for partition in self._shuffled(epoch):
                    self._remove(self._old_ones(partition, age_ms))

    def _old_ones(self, prefix: str, age_ms: int) -> Iterator[str]:
        young = 0
        for info in self._listed(prefix):
            if self._is_old(info, age_ms):
                young = 0
                yield info.key
            elif (young := young + 1) >= _YOUNG_IN_A_ROW:
                return

    def _hours(self, prefix: str, age_ms: int) -> None:
        """Objects by the hour in which they were made."""
        for hour in self._store.list_children(prefix):
            number = hour.removesuffix("/")
            # The hour's end, and the age of each object: a clock that was wrong removes nothing before its time.
            if number.isdecimal() and (int(number) + 1) * _HOUR_MS + age_ms + _SLACK_MS < self._now_ms:
                self._remove(info.key for info in self._listed(f"{prefix}/{number}") if self._is_old(info, age_ms))

    def _flat(self, prefix: str, age_ms: int) -> None:
        self._remove(info.key for info in self._listed(prefix) if self._is_old(info, age_ms))

    def _keys(self, age_ms: int) -> None:
        """Idempotency keys, each as a whole, its last object decides: a number must not be free below a claimed one."""
        for shard in self._shuffled(KEYS):
            key, infos = "", list[ObjectInfo]()
            for info in self._listed(shard):
                place = "/".join(info.key.split("/")[:3])
                if place != key:
                    self._remove_key(infos, age_ms)
                    key, infos = place, []
                infos.append(info)
            if not self._is_over():  # else the last one may be incomplete
                self._remove_key(infos, age_ms)

    def _remove_key(self, infos: list[ObjectInfo], age_ms: int) -> None:
        if all(self._is_old(info, age_ms) for info in infos):
            self._remove(iter([info.key for info in infos]))

    def _listed(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in self._store.list(prefix):
            if self._is_over():
                return
            yield info

    def _shuffled(self, prefix: str) -> list[str]:
        """The prefixes right below one, in any order."""
        if self._is_over():
            return []
        children = [child.removesuffix("/") for child in self._store.list_children(prefix) if child.endswith("/")]
        self._rng.shuffle(children)
        return [f"{prefix}/{child}" for child in children]

    def _remove(self, keys: Iterator[str]) -> None:
        while batch := [key for _, key in zip(range(256), keys, strict=False)]:
            list(self._deleters.map(self._store.delete, batch))
            self.removed += len(batch)

    def _is_old(self, info: ObjectInfo, age_ms: int) -> bool:
        return info.modified_ms + age_ms + _SLACK_MS < self._now_ms

    def _is_over(self) -> bool:
        return time.monotonic() >= self._until_s


class Sweeper:
    """Sweeps now and then."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        every_s: float,
        results_s: float,
        payloads_s: float,
        keys_s: float,
        webhooks_s: float,
    ) -> None:
        """`every_s`: the period, 0 for never; the others are how long each kind is kept."""
        self._store = store
        self._every_s = every_s
        self._ages_ms = {
            "results_ms": int(results_s * 1000),
            "payloads_ms": int(payloads_s * 1000),
            "keys_ms": int(keys_s * 1000),
            "webhooks_ms": int(webhooks_s * 1000),
        }

    async def sweep_regularly(self) -> None:
        """For ever: once per period, somewhere in it, unless another gateway was first."""
        while self._every_s:
            await asyncio.sleep(self._every_s * random.uniform(0.5, 1.5))
            try:
                removed = await asyncio.to_thread(self.sweep_once)
            except StoreError as error:
                _log.warning("sweep_failed", error=repr(error))
                continue
            if removed is not None:
                _log.info("sweep", removed=removed)

    def sweep_once(self, *, now_ms: int | None = None) -> int | None:
        """Sweep unless another gateway does in this period: then None. How many objects were removed.

        Synchronous. Raises StoreError.
        """
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        period = int(now_ms / 1000 / max(self._every_s, 1.0))
        mark = random.randbytes(8).hex().encode()
        if not self._store.put(f"{_MARKS}/{period:012d}", mark, if_absent=True):
            return None
        until_s = time.monotonic() + min(_MAX_PASS_S, _SHARE * max(self._every_s, 1.0))
        return Sweep(self._store, now_ms=now_ms, until_s=until_s, rng=random.Random()).run(**self._ages_ms)
