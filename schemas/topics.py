"""Topic names, group names and their inverse. The one place where a name of Kafka is spelled.

Knows no Kafka client and creates nothing.
"""

from __future__ import annotations

import re

import msgspec

from schemas.errors import invalid

# Kafka allows [a-zA-Z0-9._-]; the dot separates our parts, so a model name may contain it, a prefix must not.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_HIGH = ".high"  # the suffix of a model's topic for priority requests
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")

# How the control topic is made, whoever needs it first. Workers report every few seconds and everyone who starts reads
# the topic whole: what is out of date must go soon, and only closed segments are compacted.
CONTROL_CONFIGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
}


class Topics(msgspec.Struct, frozen=True):
    """The topics of one installation, all below `prefix`."""

    prefix: str = "tidegate"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise invalid(
                f"topic prefix {self.prefix!r} is not usable",
                field="prefix",
                value=self.prefix,
                remedy="use 1 to 40 of A-Z a-z 0-9 _ -, starting with a letter or digit",
            )

    def infer(self, model: str) -> str:
        """Requests to `model`; one topic per model so that backlog, retention and pausing are per model."""
        return f"{self.prefix}.infer.{check_model_name(model)}"

    def results(self, model: str) -> str:
        """Answers for consumers who live on topics."""
        return f"{self.prefix}.results.{check_model_name(model)}"

    def dead(self, model: str) -> str:
        """Dead letters of `model`."""
        return f"{self.prefix}.dead.{check_model_name(model)}"

    @property
    def replies(self) -> str:
        """Answers that a gateway waits for; each gateway reads its own partitions."""
        return f"{self.prefix}.replies"

    @property
    def control(self) -> str:
        """Compacted: announced models, and later cancellations."""
        return f"{self.prefix}.control"

    @property
    def audit(self) -> str:
        """Who managed what."""
        return f"{self.prefix}.audit"

    @property
    def webhooks_retry(self) -> str:
        """Webhook deliveries that wait for their next attempt."""
        return f"{self.prefix}.webhooks.retry"

    @property
    def webhooks_dead(self) -> str:
        """Webhook deliveries that were given up."""
        return f"{self.prefix}.webhooks.dead"

    @property
    def webhooks_source(self) -> str:
        """What webhooks are delivered from, as a regular expression: all results topics and the retry topic."""
        head = re.escape(f"{self.prefix}.")
        return rf"{head}(?:results\..+|webhooks\.retry)$"

    def group(self, pool: str) -> str:
        """The consumer group of a pool."""
        return f"{self.prefix}.{pool}"

    def model_of(self, infer_topic: str) -> str:
        """The model whose request topic this is. Raises InferenceError for any other topic."""
        head = f"{self.prefix}.infer."
        if not infer_topic.startswith(head) or len(infer_topic) == len(head):
            raise invalid(
                f"{infer_topic!r} is not a request topic of prefix {self.prefix!r}",
                field="topic",
                value=infer_topic,
                remedy=f"request topics are called {head}<model>",
            )
        return infer_topic[len(head) :]

    def model_of_dead(self, topic: str) -> str | None:
        """The model whose dead letters are in this topic; None for any other topic."""
        head = f"{self.prefix}.dead."
        return topic[len(head) :] or None if topic.startswith(head) else None


def check_model_name(name: str) -> str:
    """Return `name`, or raise InferenceError(INVALID_REQUEST) if it cannot name a topic and a directory."""
    if not _NAME.fullmatch(name) or name.endswith(_HIGH):
        raise invalid(
            f"model name {name!r} is not usable",
            field="model",
            value=name,
            remedy="use 1 to 200 of A-Z a-z 0-9 . _ -, starting with a letter or digit, not ending in .high",
        )
    return name
