"""Both clients, waiting and asynchronous, through the same tests against a gateway in memory."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import pytest_asyncio

import tidegate
from schemas.errors import ErrorCode
from schemas.v2 import HEADER_LENGTH
from tests.unit.fake_gateway import FakeGateway, problem
from tidegate import (
    AsyncClient,
    AsyncJob,
    Client,
    InvalidRequestError,
    Job,
    JobCancelledError,
    JobState,
    ModelFailedError,
    NotFoundError,
    Retries,
    Tensor,
    TidegateError,
    WaitTimeoutError,
)
from tidegate.errors import _KINDS

ROW = [[1.0, 2.5]]
MINE = {"x-mine": "secret"}
AT_ONCE = Retries(first_s=0.0, last_s=0.0)


@pytest.fixture
def fake() -> FakeGateway:
    return FakeGateway()


@pytest_asyncio.fixture(params=["waiting", "asynchronous"])
async def client(fake: FakeGateway, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    transport = httpx.MockTransport(fake)
    if request.param == "waiting":
        with httpx.Client(transport=transport) as http:
            yield Client("http://gateway/", token="secret", headers=MINE, retries=AT_ONCE, http=http)
    else:
        async with httpx.AsyncClient(transport=transport) as http:
            yield AsyncClient("http://gateway/", token="secret", headers=MINE, retries=AT_ONCE, http=http)


async def of(value: Any) -> Any:
    """What either client's method returned."""
    return await value if inspect.isawaitable(value) else value


async def all_of(values: Any) -> list[Any]:
    return [each async for each in values] if hasattr(values, "__aiter__") else list(values)


async def test_lists_take_the_model_s_datatype_which_is_asked_once(client: Any, fake: FakeGateway) -> None:
    for _ in range(2):
        result = await of(client.infer("echo", {"x": ROW}, id="mine"))
        assert result["x"] == Tensor.of("FP32", ROW)
        assert (result.model, result.version, result.id, result.request_id) == ("echo", "1", "mine", "r-1")
        assert result.parameters["queue_us"] == 5
    assert [request.method for request in fake.seen] == ["GET", "POST", "POST"]
    assert {request.headers["authorization"] for request in fake.seen} == {"Bearer secret"}
    assert fake.seen[1].headers["content-type"] == "application/octet-stream"


async def test_arrays_texts_and_tensors_tell_their_datatype_themselves(client: Any, fake: FakeGateway) -> None:
    inputs = {"x": np.array(ROW, np.float32), "t": ["a", "ü"], "b": Tensor.of("BF16", [1.5])}
    result = await of(client.infer("echo", inputs))
    assert result.numpy()["x"].tolist() == ROW
    assert result["t"].texts() == ["a", "ü"]
    assert result["b"].tolist() == [1.5]
    assert len(fake.seen) == 1


async def test_an_input_that_the_model_lacks_is_named(client: Any) -> None:
    with pytest.raises(ValueError, match="input 'y': the model has no such input; its inputs are x, t"):
        await of(client.infer("echo", {"y": [1.0]}))


async def test_options_become_parameters_headers_and_path(client: Any, fake: FakeGateway) -> None:
    await of(
        client.submit(
            "a model/1",
            {"t": ["a"]},
            version="2",
            priority=1,
            start_within_s=0.5,
            deadline_s=2,
            execution_timeout_s=0.1,
            parameters={"mine": 1},
            outputs=["t"],
            webhook="https://me/hook",
            request_id="r",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
    )
    sent = fake.seen[-1]
    assert sent.url.raw_path == b"/v2/models/a%20model%2F1/versions/2/infer"
    assert sent.headers["tidegate-webhook"] == "https://me/hook"
    assert (sent.headers["x-request-id"], sent.headers["prefer"]) == ("r", "respond-async")
    assert sent.headers["traceparent"].startswith("00-0af")
    asked = fake.asked["job/0"]
    assert asked.parameters == {
        "mine": 1,
        "priority": 1,
        "timeout": 500_000,
        "deadline_ms": 2000,
        "execution_timeout_ms": 100,
        "binary_data_output": True,
    }
    assert [output.name for output in asked.outputs] == ["t"]
    with pytest.raises(ValueError, match="deadline_s is 0"):
        await of(client.submit("echo", {"t": ["a"]}, deadline_s=0))


async def test_json_is_there_to_read_along(fake: FakeGateway) -> None:
    with httpx.Client(transport=httpx.MockTransport(fake)) as http:
        result = Client("http://gateway", binary=False, http=http).infer("echo", {"t": ["a"]})
    assert result["t"].texts() == ["a"]
    assert json.loads(fake.seen[0].content)["inputs"][0]["data"] == ["a"]


async def test_a_submission_that_got_no_answer_is_one_job(client: Any, fake: FakeGateway) -> None:
    fake.refusals = [httpx.ReadError("gone"), problem(503, "unavailable", retryable=True), httpx.ConnectError("no")]
    job = await of(client.submit("echo", {"t": ["a"]}))
    assert job.id == "job/0"
    assert len({request.headers["idempotency-key"] for request in fake.seen}) == 1
    await of(client.submit("echo", {"t": ["a"]}))
    assert fake.seen[-1].headers["idempotency-key"] != fake.seen[0].headers["idempotency-key"]


async def test_the_caller_s_key_is_taken(client: Any, fake: FakeGateway) -> None:
    jobs = [await of(client.submit("echo", {"t": ["a"]}, idempotency_key="k")) for _ in range(2)]
    assert jobs[0].id == jobs[1].id


async def test_inference_that_is_handed_over_is_not_asked_for_again(client: Any, fake: FakeGateway) -> None:
    fake.hands_over = True
    fake.on_status = lambda job_id: fake.jobs.update({job_id: "succeeded"})
    result = await of(client.infer("echo", {"t": ["a"]}, timeout_s=5))
    assert result["t"].texts() == ["a"]
    assert [request.method for request in fake.seen].count("POST") == 1


async def test_a_wait_that_is_too_short_leaves_the_job(client: Any, fake: FakeGateway) -> None:
    fake.hands_over = True
    with pytest.raises(WaitTimeoutError) as raised:
        await of(client.infer("echo", {"t": ["a"]}, timeout_s=0.01))
    fake.jobs[raised.value.job_id] = "succeeded"
    assert (await of(client.job(raised.value.job_id).result()))["t"].texts() == ["a"]


async def test_a_job_is_waited_for_cancelled_and_told_of(client: Any, fake: FakeGateway) -> None:
    job = await of(client.submit("echo", {"t": ["a"]}))
    status = await of(job.status())
    assert (status.state, status.position, status.ended) == (JobState.QUEUED, 3, False)
    assert (await of(job.cancel())).state is JobState.CANCELLED
    assert (await of(job.cancel())).state is JobState.CANCELLED  # a second time nothing happens
    assert (await of(job.wait(1))).ended
    with pytest.raises(JobCancelledError):
        await of(job.result())


async def test_a_failed_job_raises_its_own_error(client: Any, fake: FakeGateway) -> None:
    job = await of(client.submit("echo", {"t": ["a"]}))
    fake.jobs[job.id], fake.error = "failed", {"code": "model_failed", "detail": "it broke", "status": 500}
    with pytest.raises(ModelFailedError):
        await of(job.result())
    assert (await of(job.status())).error.message == "it broke"


async def test_many_are_submitted_in_one_call_and_come_as_they_end(client: Any, fake: FakeGateway) -> None:
    jobs = await of(client.submit_many("echo", [{"x": ROW}, {"x": ROW}, {"x": ROW}]))
    assert [request.url.path for request in fake.seen] == ["/v2/models/echo", "/v1/models/echo/jobs"]
    fake.jobs[jobs[1].id] = "succeeded"
    done, pending = await of(client.wait(jobs, timeout_s=0.0))
    assert ([job.id for job in done], [job.id for job in pending]) == ([jobs[1].id], [jobs[0].id, jobs[2].id])
    fake.jobs.update({jobs[0].id: "expired", jobs[2].id: "failed"})
    assert {job.id for job in await all_of(client.as_completed(jobs))} == {job.id for job in jobs}
    assert await of(client.wait(jobs)) == (jobs, [])


async def test_as_completed_ends_in_time(client: Any) -> None:
    jobs = [await of(client.submit("echo", {"t": ["a"]})) for _ in range(2)]
    with pytest.raises(TimeoutError, match="2 of 2"):
        await all_of(client.as_completed(jobs, timeout_s=0.0))
    assert await all_of(client.as_completed([])) == []


async def test_a_gateway_without_batches_is_asked_one_by_one(client: Any, fake: FakeGateway) -> None:
    fake.has_batches = False
    jobs = await of(client.submit_many("echo", [{"t": ["a"]}, {"t": ["b"]}], idempotency_key="k"))
    assert [key.split("/")[-1] for key in fake.by_key] == ["k-0", "k-1"]
    fake.jobs.update(dict.fromkeys(fake.jobs, "succeeded"))
    assert len(await all_of(client.as_completed(jobs))) == 2


async def test_values_that_json_cannot_hold_are_submitted_one_by_one(client: Any, fake: FakeGateway) -> None:
    await of(client.submit_many("echo", [{"t": [b"\xff"]}]))
    assert [request.url.path for request in fake.seen] == ["/v2/models/echo/infer"]


async def test_the_refused_of_a_batch_are_told_with_those_that_run(client: Any) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await of(client.submit_many("echo", [{"bad": ["a"]}, {"t": ["a"]}]))
    assert raised.group_contains(InvalidRequestError)
    assert raised.value.__notes__ == ["jobs that run: job/0"]


async def test_models_metadata_and_readiness(client: Any, fake: FakeGateway) -> None:
    assert [(model.name, model.state) for model in await of(client.models())] == [("echo", "READY")]
    assert (await of(client.metadata("echo")))["platform"] == "echo"
    assert (await of(client.metadata()))["name"] == "tidegate"
    assert await of(client.ready())
    fake.refusals = [problem(503, "unavailable", retryable=True), problem(404, "model_not_found")]
    assert not await of(client.ready())
    assert not await of(client.ready("other"))
    fake.refusals = [problem(404, "model_not_found")]
    with pytest.raises(NotFoundError):
        await of(client.metadata("other"))


async def test_a_large_result_is_fetched_from_where_the_gateway_says(client: Any, fake: FakeGateway) -> None:
    job = await of(client.submit("echo", {"t": ["a"]}))
    fake.jobs[job.id] = "succeeded"
    stored = fake(httpx.Request("GET", f"http://gateway/v1/jobs/{quote(job.id, safe='')}/result"))
    kind = f"application/octet-stream; {HEADER_LENGTH}={stored.headers[HEADER_LENGTH]}"
    fake.refusals = [
        httpx.Response(303, headers={"location": "http://store/bucket/key?signature=1"}),
        httpx.Response(200, content=stored.content, headers={"content-type": kind}),
    ]
    assert (await of(job.result()))["t"].texts() == ["a"]
    assert str(fake.seen[-1].url) == "http://store/bucket/key?signature=1"
    assert fake.seen[-2].headers["x-mine"] == "secret"
    assert not {"authorization", "x-mine"} & fake.seen[-1].headers.keys()  # the store is somebody else


async def test_what_is_no_gateway_is_said_so(client: Any, fake: FakeGateway) -> None:
    fake.refusals = [httpx.Response(200, text="<html>")]
    with pytest.raises(TidegateError, match="no inference response"):
        await of(client.infer("echo", {"t": ["a"]}))
    with pytest.raises(ValueError, match="begins with http"):
        Client("localhost:8000")


@pytest.mark.parametrize(("waiting", "asynchronous"), [(Client, AsyncClient), (Job, AsyncJob)])
def test_both_clients_have_the_same_surface(waiting: type, asynchronous: type) -> None:
    def surface(kind: type) -> dict[str, list[tuple[str, Any]]]:
        return {
            name: [(each.name, each.default) for each in inspect.signature(method).parameters.values()]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_") or name == "__init__"
        }

    assert surface(waiting) == surface(asynchronous)


def test_every_code_of_the_server_has_a_kind() -> None:
    assert {code.wire for code in ErrorCode} <= _KINDS.keys()


def test_importing_the_client_brings_the_http_client_and_nothing_else() -> None:
    script = "import sys; import httpx; before = set(sys.modules); import tidegate; print(*set(sys.modules) - before)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    brought = {name.partition(".")[0] for name in ran.stdout.split()} - {"tidegate"}
    assert brought <= sys.stdlib_module_names, brought
    assert set(tidegate.__all__) <= set(dir(tidegate))
