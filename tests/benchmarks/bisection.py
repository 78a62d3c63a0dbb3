"""What it costs to find one poisoned request among 32, in runs of the model: counted, not timed."""

from __future__ import annotations

import asyncio
import struct
import time
from pathlib import Path

from schemas.model import TensorSpec
from schemas.progress import Progress
from schemas.record import Envelope, Origin
from schemas.request import InferenceRequest
from schemas.tensor import Tensor
from tests.benchmarks.stack import BenchmarkError
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.backend import open_backend
from workers.batch import assemble
from workers.delivery import Delivery, Partition
from workers.instance import Batch, Finished, Instance
from workers.model_config import ModelConfig
from workers.work import Work

_REQUESTS = 32
_POISON = -1.0


def bisect_extra_runs() -> float:
    """Runs beyond the first one, for the worst of the 32 places that the poison can have.

    Raises BenchmarkError when any other request fails with it, or the poison does not.
    """
    return float(max(asyncio.run(_extra_runs())))


async def _extra_runs() -> list[int]:
    spec = (TensorSpec("INPUT0", "FP32", (1,)),)
    out = (TensorSpec("OUTPUT0", "FP32", (1,)),)
    config = ModelConfig("poisoned", "device", _REQUESTS, spec, out, parameters={"fail_value": str(_POISON)})
    instance = Instance(open_backend("device"), config, name="poisoned")
    await instance.load(Path())
    runs = []
    for place in range(_REQUESTS):
        finished = await _run(instance, [_POISON if number == place else float(number) for number in range(_REQUESTS)])
        if [part.first for part in finished.parts if part.outputs is None] != [place]:
            raise BenchmarkError(f"with poison at {place}, other requests failed than the poisoned one")
        runs.append(finished.runs - 1)
    await instance.close()
    return runs


async def _run(instance: Instance, values: list[float]) -> Finished:
    partition = Partition("poisoned", 0, AckTracker(Progress(0, 0)), BrokerClock())
    works = []
    for number, value in enumerate(values):
        tensor = Tensor("INPUT0", "FP32", (1, 1), struct.pack("<f", value))
        delivery = Delivery(partition, Origin("poisoned", 0, number), 0, [], None)
        works.append(Work(delivery, Envelope(str(number)), InferenceRequest((tensor,))))
    batch = Batch(works, [1] * len(works), [0] * len(works), time.monotonic_ns() // 1000)
    finished: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    instance.submit(batch, assemble([work.request for work in works], len(works)), finished.set_result)
    return await finished
