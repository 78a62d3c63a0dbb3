"""The client of tidegate: submit requests, wait for answers. Needs an HTTP client and nothing of the server.

    from tidegate import Client

    with Client("http://localhost:8000") as client:
        result = client.infer("digits", {"image": [[0.0] * 784]})
        print(result["scores"].tolist())

        jobs = [client.submit("digits", {"image": [row]}) for row in rows]
        for job in client.as_completed(jobs):
            print(job.result()["scores"].numpy())

`AsyncClient` is the same for event loops.
"""

from tidegate.async_client import AsyncClient, AsyncJob
from tidegate.client import Client, Job
from tidegate.errors import (
    ConflictError,
    DeadlineExceededError,
    InvalidRequestError,
    JobCancelledError,
    ModelFailedError,
    NoAnswerError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    ResultExpiredError,
    ServerError,
    TidegateError,
    UnauthenticatedError,
    UnavailableError,
    UnreadableAnswerError,
    WaitTimeoutError,
)
from tidegate.exchange import Retries
from tidegate.options import RequestOptions, SubmitOptions
from tidegate.result import Result
from tidegate.status import JobState, JobStatus, ModelStatus
from tidegate.tensor import Tensor

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Client",
    "ConflictError",
    "DeadlineExceededError",
    "InvalidRequestError",
    "Job",
    "JobCancelledError",
    "JobState",
    "JobStatus",
    "ModelFailedError",
    "ModelStatus",
    "NoAnswerError",
    "NotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "RequestOptions",
    "Result",
    "ResultExpiredError",
    "Retries",
    "ServerError",
    "SubmitOptions",
    "Tensor",
    "TidegateError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnreadableAnswerError",
    "WaitTimeoutError",
]
