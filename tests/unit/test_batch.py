"""Batch and Instance: stacking, cutting into rows, and isolating what fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorCode, InferenceError
from schemas.model import TensorSpec
from schemas.progress import Progress
from schemas.record import Envelope, Origin
from schemas.request import InferenceRequest, RequestedOutput
from schemas.tensor import Tensor, pack_bytes_elements
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.batch import Outputs, assemble, signature_of
from workers.batch_run import Batch, Finished
from workers.delivery import Delivery, Partition
from workers.instance import Instance
from workers.model_config import ModelConfig
from workers.placement import Placement
from workers.work import Work

FP32 = TensorSpec("OUT", "FP32", (-1,))


def request(values: list[list[float]], *, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    data = np.array(values, dtype=np.float32)
    tensor = Tensor("IN", "FP32", data.shape, data.tobytes())
    return InferenceRequest((tensor,), tuple(RequestedOutput(name) for name in outputs))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 3))
def test_rows_come_back_to_the_request_that_sent_them(rows: list[int], width: int) -> None:
    requests = [
        request([[float(100 * index + row)] * width for row in range(count)]) for index, count in enumerate(rows)
    ]
    stacked = assemble(requests, sum(rows))
    assert stacked["IN"].shape == (sum(rows), width)
    outputs = Outputs({"OUT": stacked["IN"]}, [FP32], sum(rows), batched=True)
    first = 0
    for sent, count in zip(requests, rows, strict=True):
        [got] = outputs.rows(first, count, None)
        assert (got.shape, bytes(got.data)) == (sent.inputs[0].shape, bytes(sent.inputs[0].data))
        first += count


def test_a_single_request_is_not_copied() -> None:
    sent = request([[1.0, 2.0]])
    array = assemble([sent], 1)["IN"]
    assert np.shares_memory(array, np.frombuffer(sent.inputs[0].data, dtype=np.uint8))


def test_cutting_outputs_copies_nothing() -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    [tensor] = Outputs({"OUT": array}, [FP32], 3, batched=True).rows(1, 1, None)
    assert np.shares_memory(np.frombuffer(tensor.data, dtype=np.float32), array)


def test_text_is_stacked_and_cut_by_element() -> None:
    spec = TensorSpec("OUT", "BYTES", (2,))
    requests = [
        InferenceRequest((Tensor("IN", "BYTES", (1, 2), pack_bytes_elements(pair)),))
        for pair in ([b"a", b""], [b"ccc", b"d"])
    ]
    stacked = assemble(requests, 2)
    assert stacked["IN"].tolist() == [[b"a", b""], [b"ccc", b"d"]]
    [tensor] = Outputs({"OUT": stacked["IN"]}, [spec], 2, batched=True).rows(1, 1, None)
    assert tensor.to_list() == ["ccc", "d"]


def test_inputs_in_another_order_share_a_batch() -> None:
    a, b = (Tensor(name, "FP32", (1, 1), np.float32(value).tobytes()) for name, value in (("A", 1), ("B", 2)))
    one, other = InferenceRequest((a, b)), InferenceRequest((b, a))
    assert signature_of(one, batched=True) == signature_of(other, batched=True)
    stacked = assemble([one, other], 2)
    assert (stacked["A"].tolist(), stacked["B"].tolist()) == ([[1.0], [1.0]], [[2.0], [2.0]])


def test_without_a_batch_dimension_shapes_are_exact() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    [tensor] = Outputs({"OUT": data}, [FP32], 1, batched=False).rows(0, 1, None)
    assert tensor.shape == (2, 3)


@pytest.mark.parametrize(
    ("array", "told"),
    [(np.zeros((2, 1), np.float32), "shape [2, 1] for a batch of 3 rows"), (np.zeros((3, 1), np.float64), "float64")],
)
def test_an_output_that_is_not_as_configured_names_what_came(array: np.ndarray[Any, Any], told: str) -> None:
    with pytest.raises(InferenceError) as caught:
        Outputs({"OUT": array}, [FP32], 3, batched=True)
    assert caught.value.code is ErrorCode.MODEL_FAILED
    assert told in caught.value.message.replace("(", "[").replace(")", "]")


_CPU = Placement()


class Poisoned:
    """A backend that fails on any row that begins with a value of `poison`, and notes what it was given."""

    def __init__(self, poison: frozenset[float]) -> None:
        self.poison = poison
        self.asked: list[tuple[str, ...]] = []

    def load(self, path: Path, config: ModelConfig, placement: Placement = _CPU) -> None:
        pass

    def warm_up(self) -> None:
        pass

    def infer(self, inputs: dict[str, Any], outputs: tuple[str, ...]) -> dict[str, Any]:
        self.asked.append(outputs)
        if self.poison & set(inputs["IN"][:, 0].tolist()):
            raise ZeroDivisionError("poisoned")
        return {name: inputs["IN"] for name in outputs}

    def unload(self) -> None:
        pass


def work(sent: InferenceRequest, number: int) -> Work:
    partition = Partition("t.infer.m", 0, AckTracker(Progress(0, 0)), BrokerClock())
    return Work(Delivery(partition, Origin("t.infer.m", 0, number), 0, [], b""), Envelope(str(number)), sent)


async def run(backend: Poisoned, requests: list[InferenceRequest]) -> Finished:
    config = ModelConfig(
        "m", "device", 64, (TensorSpec("IN", "FP32", (-1,)),), (FP32, TensorSpec("OUT2", "FP32", (-1,)))
    )
    instance = Instance(backend, config, name="m")
    await instance.load(Path())
    rows = [sent.inputs[0].shape[0] for sent in requests]
    batch = Batch([work(sent, number) for number, sent in enumerate(requests)], rows, [0] * len(rows), 0)
    finished: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    instance.submit(batch, assemble(requests, sum(rows)), finished.set_result)
    try:
        return await finished
    finally:
        await instance.close()


def answered(finished: Finished) -> dict[int, list[float] | str]:
    """By request: its rows' first values, or its error."""
    found: dict[int, list[float] | str] = {}
    for part in finished.parts:
        first = 0
        for index in range(part.first, part.first + part.count):
            if part.outputs is None:
                assert part.error is not None
                found[index] = part.error.message
                continue
            rows = finished.batch.rows[index]
            tensor = part.outputs.rows(first, rows, None)[0]
            found[index] = np.frombuffer(tensor.data, np.float32).tolist()
            first += rows
    return found


async def test_one_poison_in_32_costs_ten_more_runs_and_fails_alone() -> None:
    finished = await run(Poisoned(frozenset({17.0})), [request([[float(index)]]) for index in range(32)])
    got = answered(finished)
    assert "poisoned" in str(got.pop(17))
    assert got == {index: [float(index)] for index in range(32) if index != 17}
    assert finished.runs - 1 <= 2 * 5 + 1


@given(st.lists(st.integers(1, 3), min_size=1, max_size=9), st.data())
def test_only_the_poisoned_fail_whatever_the_rows(rows: list[int], data: st.DataObject) -> None:
    poisoned = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    requests = [request([[float(index)]] * count) for index, count in enumerate(rows)]
    got = answered(asyncio.run(run(Poisoned(frozenset(map(float, poisoned))), requests)))
    assert {index for index, answer in got.items() if isinstance(answer, str)} == poisoned
    for index, answer in got.items():
        if index not in poisoned:
            assert answer == [float(index)] * rows[index]


async def test_only_what_somebody_asked_for_is_computed() -> None:
    backend = Poisoned(frozenset())
    await run(backend, [request([[1.0]], outputs=("OUT2",)), request([[2.0]], outputs=("OUT2",))])
    await run(backend, [request([[1.0]], outputs=("OUT2",)), request([[2.0]])])
    assert backend.asked == [("OUT2",), ("OUT", "OUT2")]
