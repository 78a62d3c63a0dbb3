"""WebhookMessages: what a receiver reads: a Standard Webhooks message about a job's end, signed. Knows no network."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from gateway.job_id import Job, encode_job_id
from gateway.standing import Standing, document_of
from gateway.webhook_delivery import WebhookDelivery
from gateway.webhook_secrets import WebhookSecrets
from schemas.errors import InferenceError
from schemas.outcome import JobState, Outcome
from schemas.record import rfc3339
from schemas.topics import Topics
from schemas.v2 import decode_response, encode_response


class WebhookMessages:
    """Makes messages. The same job has the same id and the same body each time; timestamp and signature are new."""

    def __init__(
        self, *, topics: Topics, job_key: bytes, secrets: WebhookSecrets, inline_bytes: int, base_url: str
    ) -> None:
        self._topics = topics
        self._job_key = job_key
        self._secrets = secrets
        self._inline_bytes = inline_bytes
        self._base_url = base_url.rstrip("/")

    def job_id(self, delivery: WebhookDelivery) -> str:
        """The id of the delivery's job, which is the webhook's id too. Raises InferenceError for no request topic."""
        return encode_job_id(self._job(delivery), key=self._job_key, tenant=delivery.tenant)

    def body(self, delivery: WebhookDelivery, outcome: Outcome) -> bytes:
        """The message: the job's document, with the result in it where that is small."""
        document = document_of(self.job_id(delivery), Standing(self._job(delivery), outcome.state, outcome=outcome))
        data: dict[str, Any] = msgspec.to_builtins(document)
        data["links"] = {name: self._base_url + path for name, path in document.links.items()}
        if result := self._result(outcome):
            data["result"] = msgspec.Raw(result)
        return msgspec.json.encode(
            {"type": f"job.{outcome.state.value}", "timestamp": rfc3339(outcome.finished_ms), "data": data}
        )

    def headers(self, delivery: WebhookDelivery, body: bytes) -> dict[str, str]:
        """The headers to send a body with, at this moment."""
        signed = self._secrets.headers(delivery.tenant, self.job_id(delivery), body, now_s=int(time.time()))
        return {"content-type": "application/json", "user-agent": "tidegate-webhooks", **signed}

    def _job(self, delivery: WebhookDelivery) -> Job:
        origin = delivery.origin
        name = self._topics.model_of(origin.topic)
        return Job(name, delivery.epoch, origin.partition, origin.offset, delivery.created_ms)

    def _result(self, outcome: Outcome) -> bytes:
        """The result as JSON; nothing when it is large, or none."""
        size_bytes = len(outcome.value)
        if outcome.state is not JobState.SUCCEEDED or outcome.claim or not 0 < size_bytes <= self._inline_bytes:
            return b""
        try:
            response = decode_response(outcome.value, outcome.header_length)
            result, _ = encode_response(response, binary=lambda name: False)
        except InferenceError:  # the job's own route will say so; the receiver is told that the job has ended
            return b""
        return result if len(result) <= self._inline_bytes else b""
