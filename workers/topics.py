"""TopicAdmin: creates what a pool needs in Kafka, once. One of three files that know a Kafka client.

Uses kafka-python, since it can set offsets for a group without members and tells topic ids; both are unknown to the
client of the hot path. Synchronous: callers use a thread.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable

import msgspec
import structlog
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient, OffsetSpec
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    KafkaError,
    NoError,
    NotCoordinatorError,
    TopicAlreadyExistsError,
)
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from schemas.errors import ErrorCode, InferenceError
from schemas.kafka_connection import KafkaConnection
from schemas.topics import CONTROL_CONFIGS, Topics

log = structlog.get_logger()

_ANSWER_TIMEOUT_MS = 5000  # nobody can end these calls; callers try again, or stop
_COORDINATOR_COMING = (CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError)
_COORDINATOR_RETRY_S = (0.1, 0.2, 0.4, 0.8, 1.6)
_DAY_MS = 24 * 3600 * 1000


class RequestTopic(msgspec.Struct, frozen=True):
    """A model's request topic as it exists. `epoch` changes when the topic is deleted and created again.

    `result_partitions`: of the model's results topic.
    """

    name: str
    epoch: int
    partitions: int
    result_partitions: int = 0


class _FileToken(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python publishes no types
    """The token of a file, read anew for each connection."""

    def __init__(self, kafka: KafkaConnection) -> None:
        self._kafka = kafka

    def token(self) -> str:
        """The token. Raises InferenceError."""
        return self._kafka.token()


class TopicAdmin:
    """Creates topics and initial offsets for one pool."""

    def __init__(self, *, kafka: KafkaConnection, topics: Topics, partitions: int, replication_factor: int) -> None:
        """`partitions`: of each topic created here; it bounds how many workers a pool can use."""
        self._kafka = kafka
        self._topics = topics
        self._partitions = partitions
        self._replication_factor = replication_factor

    def provision(self, models: Iterable[str], *, pool: str) -> dict[str, RequestTopic]:
        """Create what is missing for these models and return their request topics by model name.

        Every partition without a committed offset of the pool gets one at its first record, so that no autoscaler
        ever meets "no committed offset". Raises InferenceError(UNAVAILABLE) when Kafka does not answer or refuses.
        """
        try:
            return self._provision(list(models), pool)
        except KafkaError as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"cannot set up topics at {self._kafka.bootstrap}: {cause!r}"
            ) from cause

    def ensure(self, topic: str, *, partitions: int) -> int:
        """Create one topic if it is missing; returns how many partitions it has. Raises InferenceError(UNAVAILABLE)."""
        spec: dict[str, object] = {"num_partitions": partitions, "replication_factor": self._replication_factor}
        try:
            admin = self._admin()
            try:
                if topic not in admin.list_topics():
                    self._create_one(admin, topic, spec)
                    admin.wait_for_topics([topic])
                return len(admin.describe_topics([topic])[0]["partitions"])
            finally:
                admin.close()
        except KafkaError as cause:
            raise InferenceError(ErrorCode.UNAVAILABLE, f"cannot create topic {topic!r}: {cause!r}") from cause

    def dead_letter_models(self) -> dict[str, int]:
        """The models that have a topic of dead letters, with how many partitions their request topic has (0: gone).

        Raises InferenceError(UNAVAILABLE).
        """
        try:
            admin = self._admin()
            try:
                existing = set(admin.list_topics())
                models = [model for topic in sorted(existing) if (model := self._topics.model_of_dead(topic))]
                asked = [topic for model in models if (topic := self._topics.infer(model)) in existing]
                described = admin.describe_topics(asked) if asked else []
                counts = {topic["name"]: len(topic["partitions"]) for topic in described}
                return {model: counts.get(self._topics.infer(model), 0) for model in models}
            finally:
                admin.close()
        except KafkaError as cause:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"cannot list topics at {self._kafka.bootstrap}: {cause!r}"
            ) from cause

    def _admin(self) -> KafkaAdminClient:
        options = self._kafka.options()
        if self._kafka.has_token:
            options["sasl_oauth_token_provider"] = _FileToken(self._kafka)
        return KafkaAdminClient(
            **options, bootstrap_timeout_ms=_ANSWER_TIMEOUT_MS, request_timeout_ms=_ANSWER_TIMEOUT_MS
        )

    def _provision(self, models: list[str], pool: str) -> dict[str, RequestTopic]:
        admin = self._admin()
        try:
            self._create_missing(admin, models)
            names = [name(model) for model in models for name in (self._topics.infer, self._topics.results)]
            described = {topic["name"]: topic for topic in admin.describe_topics(names)}
            found = {}
            for model in models:
                topic = described[self._topics.infer(model)]
                found[model] = RequestTopic(
                    topic["name"],
                    zlib.crc32(str(topic["topic_id"]).encode()),
                    len(topic["partitions"]),
                    len(described[self._topics.results(model)]["partitions"]),
                )
            self._commit_initial(admin, found.values(), self._topics.group(pool))
        finally:
            admin.close()
        return found

    def _create_missing(self, admin: KafkaAdminClient, models: list[str]) -> None:
        wanted: dict[str, dict[str, object]] = {self._topics.control: self._control_topic()}
        for model in models:
            wanted[self._topics.infer(model)] = self._topic({"message.timestamp.type": "LogAppendTime"})
            wanted[self._topics.results(model)] = self._topic({"message.timestamp.type": "LogAppendTime"})
            # A dead letter is its record plus headers: it needs a little more room than the record had.
            wanted[self._topics.dead(model)] = self._topic(
                {"retention.ms": str(30 * _DAY_MS), "max.message.bytes": "2097152"}
            )
        existing = set(admin.list_topics())
        missing = {name: spec for name, spec in wanted.items() if name not in existing}
        if not missing:
            return
        try:
            admin.create_topics(missing)
        except TopicAlreadyExistsError:  # another worker of the pool was faster with one of them: one by one, then
            for name, spec in missing.items():
                self._create_one(admin, name, spec)
        admin.wait_for_topics(list(missing))
        log.info("create_topics", topics=sorted(missing))

    def _create_one(self, admin: KafkaAdminClient, name: str, spec: dict[str, object]) -> None:
        try:
            admin.create_topics({name: spec})
        except TopicAlreadyExistsError:
            return

    def _topic(self, configs: dict[str, str]) -> dict[str, object]:
        return {
            "num_partitions": self._partitions,
            "replication_factor": self._replication_factor,
            "configs": configs,
        }

    def _control_topic(self) -> dict[str, object]:
        return {
            "num_partitions": 1,
            "replication_factor": self._replication_factor,
            "configs": CONTROL_CONFIGS,
        }

    def _committed(
        self, admin: KafkaAdminClient, group: str, keys: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """On a new cluster the first look makes the topic of offsets, and is refused until that is there."""
        for retry_s in _COORDINATOR_RETRY_S:
            try:
                return dict(admin.list_group_offsets({group: keys})[group])
            except _COORDINATOR_COMING:
                time.sleep(retry_s)
        return dict(admin.list_group_offsets({group: keys})[group])

    def _commit_initial(self, admin: KafkaAdminClient, found: Iterable[RequestTopic], group: str) -> None:
        keys = [TopicPartition(topic.name, number) for topic in found for number in range(topic.partitions)]
        if not keys:
            return
        committed = self._committed(admin, group, keys)
        missing = [key for key in keys if key not in committed or committed[key].offset < 0]
        if not missing:
            return
        first = admin.list_partition_offsets(dict.fromkeys(missing, OffsetSpec.EARLIEST))
        offsets = {key: OffsetAndMetadata(first[key].offset, "", -1) for key in missing}
        try:
            outcome = admin.alter_group_offsets(group, offsets)
        except KafkaError as error:
            log.warning("leave_offsets_to_members", error=repr(error))
            return
        refused = {key: error for key, error in outcome.items() if error is not NoError}
        if refused:  # the group has members; each commits for what it is assigned
            log.info("leave_offsets_to_members", partitions=len(refused))
