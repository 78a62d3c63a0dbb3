"""Bisection: how many runs beside the first it takes to find one bad request among 32, through a real Instance."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from schemas.progress import Progress
from schemas.record import Envelope, Origin
from schemas.request import InferenceRequest
from schemas.tensor import tensor_from_list
from store import open_store
from tests.benchmarks.bench import Bench
from tests.benchmarks.stack import BenchmarkError
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.backend import open_backend
from workers.batch import assemble
from workers.batch_run import Batch, Finished
from workers.delivery import Delivery, Partition
from workers.instance import Instance
from workers.repository import ModelRepository
from workers.work import Work

_ROWS = 32
_POISON = -1.0
_TENSORS = "data_type: TYPE_FP32 dims: [1]"
_CONFIG = (
    f'backend: "device" input {{ name: "INPUT0" {_TENSORS} }} output {{ name: "OUTPUT0" {_TENSORS} }} '
    f"max_batch_size: {_ROWS} dynamic_batching {{ }} "
    f'parameters {{ key: "fail_value" value {{ string_value: "{_POISON:g}" }} }}'
)


def measure(bench: Bench) -> None:
    """bisect_extra_runs: the most of all places where the bad request can stand."""
    repository = bench.stack("bench-bisect", {"device": _CONFIG}).repository
    runs = uvloop.run(_runs(repository))
    bench.runs["bisect_extra_runs"].append(max(runs))


async def _runs(repository: Path) -> list[int]:
    model = ModelRepository(open_store(str(repository)), cache=repository).read("device")
    instance = Instance(open_backend("device"), model.config, name="bisect")
    await instance.load(repository / "device" / "1")
    try:
        return [await _extra_runs(instance, place) for place in range(_ROWS)]
    finally:
        await instance.close()


async def _extra_runs(instance: Instance, place: int) -> int:
    partition = Partition("bench.infer.device", 0, AckTracker(Progress(0, 0)), BrokerClock())
    works = [
        Work(
            Delivery(partition, Origin(partition.topic, 0, index), 0, (), None),
            Envelope(f"row-{index}"),
            InferenceRequest(
                (tensor_from_list("INPUT0", "FP32", (1, 1), [_POISON if index == place else float(index)]),)
            ),
        )
        for index in range(_ROWS)
    ]
    done: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    batch = Batch(works, [1] * _ROWS, [0] * _ROWS, 0)
    instance.submit(batch, assemble([work.request for work in works], _ROWS), done.set_result)
    finished = await done
    failed = [part.first for part in finished.parts if part.error is not None]
    if failed != [place]:
        raise BenchmarkError(f"the bad request stood at {place}, and those at {failed} failed")
    return finished.runs - 1
