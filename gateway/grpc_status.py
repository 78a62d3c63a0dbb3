"""How errors leave a gRPC call: status, message and trailing metadata. Knows no call of the protocol, no Kafka."""

from __future__ import annotations

from typing import Any

import grpc

from gateway.problem import retry_after
from schemas.errors import ErrorCode, InferenceError

Metadata = tuple[tuple[str, str], ...]

STATUS: dict[ErrorCode, grpc.StatusCode] = {code: grpc.StatusCode[code.grpc_status] for code in ErrorCode}
# On the wire each byte that is no printable ASCII becomes three, and callers take 8 KiB of metadata in all.
_MESSAGE_BYTES = 2000


class StillRunsError(InferenceError):
    """The wait has run out, the request goes on: its answer will be found under `job_id`."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            ErrorCode.DEADLINE_EXCEEDED,
            "the answer did not come while this call could wait; the request goes on",
            remedy=f"ask GET /v1/jobs/{job_id}, or send the metadata prefer: respond-async to begin with",
        )
        self.job_id = job_id


def message_of(error: InferenceError) -> str:
    """The error for people, in one line: what, where, and what to do about it."""
    text = error.message
    if error.field:
        text += f" [{error.field}: {error.value}]" if error.value else f" [{error.field}]"
    if error.remedy:
        text += f"; {error.remedy}"
    return text.encode()[:_MESSAGE_BYTES].decode(errors="ignore")


def metadata_of(error: InferenceError) -> Metadata:
    """What programs read: the code of our table, when to come again, and the job's id where there is one."""
    told = [("tidegate-code", error.code.wire)]
    if (seconds := retry_after(error)) is not None:
        told.append(("retry-after", str(seconds)))
    if isinstance(error, StillRunsError):
        told.append(("tidegate-job-id", error.job_id))
    return tuple(told)


async def fail(context: Any, error: InferenceError, metadata: Metadata) -> None:
    """End the call with this error. Raises what gRPC's own abort raises, always."""
    await context.abort(STATUS[error.code], message_of(error), metadata_of(error) + metadata)
