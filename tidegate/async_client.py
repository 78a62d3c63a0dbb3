"""AsyncClient and AsyncJob: tidegate from an event loop. What is done is in tidegate/operations.py; here it is sent.

tidegate/client.py is the same for code that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from tidegate.exchange import Clock, HttpCall, HttpReply, NoReply, Operation, Pause, Retries, Step
from tidegate.inputs import Inputs
from tidegate.operations import Operations
from tidegate.options import RequestOptions, SubmitOptions
from tidegate.result import Result
from tidegate.status import JobStatus, ModelStatus
from tidegate.transport import base_url, headers_with, reply_of, target, timeout_of, was_sent
from tidegate.watching import Watch, accepted

T = TypeVar("T")


class AsyncJob:
    """A job at a gateway. Made by `AsyncClient.submit`, or of its id by `AsyncClient.job`."""

    def __init__(self, client: AsyncClient, job_id: str, model: str = "") -> None:
        self._client = client
        self.id = job_id
        self.model = model

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r}, model={self.model!r})"

    async def status(self) -> JobStatus:
        """Where it stands now. Raises TidegateError."""
        return await self._client._run(self._client._operations.status(self.id))

    async def wait(self, timeout_s: float | None = None) -> JobStatus:
        """Wait until it has ended, however it has. None: as long as it takes.

        Raises WaitTimeoutError, after which it goes on, or TidegateError when the gateway cannot tell.
        """
        return await self._client._run(self._client._operations.wait(self.id, timeout_s))

    async def result(self, timeout_s: float | None = None) -> Result:
        """Wait until it has ended and return its result.

        Raises the error that it has ended with (TidegateError, of its own kind), or WaitTimeoutError.
        """
        return await self._client._run(self._client._operations.result(self.id, timeout_s))

    async def cancel(self) -> JobStatus:
        """Cancel it, and return its status then: cancelled, or how it had ended before. Raises TidegateError."""
        return await self._client._run(self._client._operations.cancel(self.id))


class AsyncClient:
    """A tidegate gateway, or several behind one address. Tasks may share it. Close it, or use it in `async with`.

    All methods are cancel-safe: a job that was submitted goes on, one that was not acknowledged may run.

    Every method raises TidegateError of a kind that tells what to do about it (tidegate.errors), and ValueError for
    values that can be no request. What fails in passing is repeated as `retries` says.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        headers: Mapping[str, str] | None = None,
        retries: Retries | None = None,
        binary: bool = True,
        http: httpx.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        """
        Args:
            url: of the gateway, such as https://models.example.com.
            token: API key or JSON web token, sent as a bearer token.
            headers: further headers of every call.
            retries: how failures in passing are met; None: five attempts.
            binary: tensors travel raw, which is smaller and faster; False: as JSON, to read along.
            http: an HTTP client of yours, for proxies, certificates or another transport; it stays yours to close.
            clock: for tests.
        """
        self._url = base_url(url)
        self._headers = headers_with(token, headers)
        self._owned = http is None
        self._http = http if http is not None else httpx.AsyncClient()
        self._operations = Operations(retries=retries or Retries(), binary=binary, clock=clock or Clock())
        self._pause = asyncio.sleep

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Close its connections. Jobs go on at the gateway."""
        if self._owned:
            await self._http.aclose()

    async def infer(
        self, model: str, inputs: Inputs, *, timeout_s: float | None = 60.0, **options: Unpack[RequestOptions]
    ) -> Result:
        """Run a request and wait for its result, within a second of `timeout_s`; None: as long as it takes.

        Where the gateway's own wait ends sooner it answers with a job, and this goes on to wait for that one: nothing
        is computed twice. Raises WaitTimeoutError, whose `job_id` leads to the result later: `client.job(job_id)`.
        """
        return await self._run(self._operations.infer(model, inputs, timeout_s, options))

    async def submit(self, model: str, inputs: Inputs, **options: Unpack[SubmitOptions]) -> AsyncJob:
        """Submit a job and return once the gateway's Kafka holds it. A failure in passing never makes two of it."""
        status = await self._run(self._operations.submit(model, inputs, options))
        return AsyncJob(self, status.id, status.model)

    async def submit_many(self, model: str, many: Sequence[Inputs], **options: Unpack[SubmitOptions]) -> list[AsyncJob]:
        """Submit independent jobs, in one call where the gateway can; the jobs in the order of `many`.

        Raises ExceptionGroup of TidegateErrors when some were refused; the others run, its note names them.
        """
        submitted = await self._run(self._operations.submit_many(model, many, options))
        return [AsyncJob(self, status.id, status.model) for status in accepted(submitted)]

    def job(self, job_id: str) -> AsyncJob:
        """A job by its id, which may be of another process. Asks nothing of the gateway."""
        return AsyncJob(self, job_id)

    async def as_completed(self, jobs: Iterable[AsyncJob], timeout_s: float | None = None) -> AsyncIterator[AsyncJob]:
        """The jobs, each as it ends. Raises TimeoutError when the time is over and some have not ended."""
        by_id = {job.id: job for job in jobs}
        watch = Watch(self._operations, by_id, timeout_s)
        while watch.pending:
            ended = await self._run(watch.next_ended())
            if not ended:
                raise TimeoutError(f"{len(watch.pending)} of {len(by_id)} jobs have not ended")
            for job_id in ended:
                yield by_id[job_id]

    async def wait(
        self, jobs: Iterable[AsyncJob], timeout_s: float | None = None
    ) -> tuple[list[AsyncJob], list[AsyncJob]]:
        """Wait until all have ended or the time is over: (the ended, the others), each in their order."""
        by_id = {job.id: job for job in jobs}
        watch = Watch(self._operations, by_id, timeout_s)
        while await self._run(watch.next_ended()):
            pass
        pending = watch.pending
        return (
            [job for job_id, job in by_id.items() if job_id not in pending],
            [job for job_id, job in by_id.items() if job_id in pending],
        )

    async def models(self) -> list[ModelStatus]:
        """All versions of all models that you may see, and whether they are ready."""
        return await self._run(self._operations.models())

    async def metadata(self, model: str | None = None, version: str = "") -> dict[str, Any]:
        """What a model takes and gives, as the protocol has it; without a name, what the server is."""
        return await self._run(self._operations.metadata(model, version))

    async def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the gateway, or a model, takes requests now. Asks once."""
        return await self._run(self._operations.ready(model, version))

    async def _run(self, operation: Operation[T]) -> T:
        answer: HttpReply | NoReply | None = None
        try:
            while True:
                answer = await self._perform(operation.send(answer))
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            operation.close()

    async def _perform(self, step: Step) -> HttpReply | NoReply | None:
        if isinstance(step, Pause):
            await self._pause(step.seconds)
            return None
        return await self._send(step)

    async def _send(self, call: HttpCall) -> HttpReply | NoReply:
        url, headers = target(self._url, self._headers, call)
        try:
            response = await self._http.request(
                call.method,
                url,
                content=call.body or None,
                headers=headers,
                timeout=timeout_of(call),
                follow_redirects=False,
            )
        except httpx.HTTPError as error:
            return NoReply(error, was_sent(error))
        return reply_of(response)
