"""What stands in an installation's control topic, for tests of what gateways write there."""

from __future__ import annotations

from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.integration.echo_worker import EchoWorker


async def control_records(worker: EchoWorker) -> list[Any]:
    """All records of the control topic up to now, compacted or not."""
    consumer = AIOKafkaConsumer(bootstrap_servers=worker.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        place = TopicPartition(worker.topics.control, 0)
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        records: list[Any] = []
        while await consumer.position(place) < end:
            for got in (await consumer.getmany(timeout_ms=1000)).values():
                records.extend(got)
        return records
    finally:
        await consumer.stop()
