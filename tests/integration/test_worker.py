"""A worker serves: every way a request may come and its answer may go, on a real Kafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from local.kafka import LocalKafka
from schemas.deadline import Deadline
from schemas.outcome import JobState, Outcome, decode_stored, encode_stored
from schemas.record import Origin
from schemas.response import Timings
from store import open_store
from tests.integration.topic_client import TopicClient, response_of, rows_request, values_of
from tests.integration.worker_process import Installation
from tests.models import add_sub, write_model

pytestmark = pytest.mark.kafka

_ROW = [1.0, 2.0, 3.0, 4.0]
_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


async def test_plain_json_without_headers_is_answered_on_the_results_topic_under_its_place(site: Installation) -> None:
    write_model(site.repository, "sums", add_sub())
    async with client_of(site) as client, site.worker(partitions=2) as worker:
        await worker.ready()
        inputs = [{"name": name, "datatype": "FP32", "shape": [1, 4], "data": _ROW} for name in ("INPUT0", "INPUT1")]
        origin = await client.send_json("sums", {"id": "mine", "inputs": inputs}, partition=1)
        results = await client.read(client.topics.results("sums"), partition=1)
        outcome = (await results.answered([str(origin)]))[str(origin)]
    assert (outcome.state, outcome.origin) == (JobState.SUCCEEDED, origin)
    assert response_of(outcome).id == "mine"
    assert (values_of(outcome, "OUTPUT0"), values_of(outcome, "OUTPUT1")) == ([2, 4, 6, 8], [0, 0, 0, 0])


async def test_a_request_with_reply_to_is_answered_there_with_its_envelope_and_timings(site: Installation) -> None:
    site.add_device("dev", delay_us=200_000, execute_base_ms=20)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        reply_to = await client.make_replies(partitions=2)
        soon = Deadline.after(60_000, now_ms=time.time_ns() // 1_000_000)
        sent = await client.send_many(
            "dev", [rows_request(_ROW), rows_request(_ROW, _ROW)], reply_to=reply_to, deadline=soon, traceparent=_TRACE
        )
        replies = await client.read(reply_to.topic, partition=reply_to.partition)
        outcomes = await replies.answered(id_ for id_, _ in sent)
        assert not (await (await client.results("dev")).everything()).records
    for id_, origin in sent:
        outcome = outcomes[id_]
        assert (outcome.origin, outcome.traceparent, outcome.claim) == (origin, _TRACE, "")
        assert 0 < outcome.created_ms <= outcome.started_ms + 50 <= outcome.finished_ms + 50
        timings = msgspec.convert(response_of(outcome).parameters, Timings)
        assert (timings.batch_rows, timings.batch_requests) == (3, 2)
        assert timings.infer_us >= 20_000
        assert timings.queue_us + timings.load_us >= 150_000
    assert len(values_of(outcomes[sent[1][0]])) == 8


async def test_a_stored_request_is_in_the_object_store_before_its_results_record(site: Installation) -> None:
    site.add_device("dev")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        id_, origin = await client.send("dev", rows_request(_ROW), stored=True, traceparent=_TRACE)
        recorded = (await (await client.results("dev")).answered([id_]))[id_]
        stored = decode_stored(open_store(str(site.store)).get(await client.outcome_key(origin)))
    assert stored == recorded
    assert values_of(stored) == _ROW


async def test_an_answer_that_is_waited_for_is_stored_first_where_that_is_asked_for(site: Installation) -> None:
    site.add_device("dev")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        reply_to = await client.make_replies()
        id_, origin = await client.send("dev", rows_request(_ROW), stored=True, reply_to=reply_to)
        replied = (await (await client.read(reply_to.topic)).answered([id_]))[id_]
        stored = decode_stored(open_store(str(site.store)).get(await client.outcome_key(origin)))
    assert stored == replied
    assert values_of(replied) == _ROW


async def test_a_stored_outcome_is_not_overwritten_by_a_repeat(site: Installation) -> None:
    site.add_device("dev")
    store = open_store(str(site.store))
    async with client_of(site) as client:
        await client.provision("dev")
        id_, origin = await client.send("dev", rows_request(_ROW), stored=True)
        first = Outcome(id_, JobState.FAILED, origin, b'{"code":"model_failed","message":"first"}', None, 1, 2, 3)
        key = await client.outcome_key(origin)
        store.put(key, encode_stored(first))
        async with site.worker() as worker:
            await worker.ready()
            recorded = (await (await client.results("dev")).answered([id_]))[id_]
    assert recorded == decode_stored(store.get(key)) == first


async def test_a_job_that_was_cancelled_is_told_as_such_with_what_its_record_knows(site: Installation) -> None:
    site.add_device("dev")
    store = open_store(str(site.store))
    async with client_of(site) as client:
        await client.provision("dev")
        webhook = "https://example.org/hook"
        id_, origin = await client.send("dev", rows_request(_ROW), stored=True, webhook=webhook, tenant="acme")
        cancelled = Outcome("", JobState.CANCELLED, origin, b'{"code":"cancelled","message":"so"}', created_ms=1)
        store.put(await client.outcome_key(origin), encode_stored(cancelled))
        async with site.worker() as worker:
            await worker.ready()
            recorded = (await (await client.results("dev")).answered([id_]))[id_]
    assert (recorded.state, recorded.webhook, recorded.tenant) == (JobState.CANCELLED, webhook, "acme")


async def test_a_stored_outcome_that_nobody_can_read_is_replaced(site: Installation) -> None:
    site.add_device("dev")
    store = open_store(str(site.store))
    async with client_of(site) as client:
        await client.provision("dev")
        id_, origin = await client.send("dev", rows_request(_ROW), stored=True)
        key = await client.outcome_key(origin)
        store.put(key, b"no outcome")
        async with site.worker() as worker:
            await worker.ready()
            recorded = (await (await client.results("dev")).answered([id_]))[id_]
    assert recorded == decode_stored(store.get(key))
    assert values_of(recorded) == _ROW


async def test_large_requests_and_answers_go_by_the_object_store(site: Installation) -> None:
    site.add_device("dev")
    store = open_store(str(site.store))
    rows = [[float(number) for number in range(5000)]]
    async with client_of(site) as client, site.worker(claim_above_bytes=10_000) as worker:
        await worker.ready()
        reply_to = await client.make_replies()
        # A small record that refers to a large value.
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 5000], "data": rows[0]}]}
        store.put("claims/requests/one", msgspec.json.encode(body))
        claimed = await client.send_raw("dev", b"", headers=[("tidegate-claim", b"claims/requests/one")])
        id_, _ = await client.send("dev", rows_request(*rows), reply_to=reply_to)
        of_claimed = (await (await client.results("dev")).answered([str(claimed)]))[str(claimed)]
        of_large = (await (await client.read(reply_to.topic)).answered([id_]))[id_]
    for outcome in (of_claimed, of_large):
        assert (outcome.state, outcome.value) == (JobState.SUCCEEDED, b"")
        whole = msgspec.structs.replace(outcome, value=store.get(outcome.claim))
        assert values_of(whole) == rows[0]


async def test_a_large_stored_answer_lies_by_itself_and_a_repeat_does_not_touch_it(site: Installation) -> None:
    site.add_device("dev")
    store = open_store(str(site.store))
    rows = [[float(number) for number in range(5000)]]
    async with client_of(site) as client, site.worker(claim_above_bytes=10_000) as worker:
        await worker.ready()
        id_, origin = await client.send("dev", rows_request(*rows), stored=True)
        recorded = (await (await client.results("dev")).answered([id_]))[id_]
        stored = decode_stored(store.get(await client.outcome_key(origin)))
        plain, _ = await client.send("dev", rows_request(*rows))
        lasting = (await (await client.results("dev")).answered([plain]))[plain]
    assert stored == recorded
    assert stored.value == b""
    assert stored.claim.startswith("claims/answers/")
    assert values_of(msgspec.structs.replace(stored, value=store.get(stored.claim))) == rows[0]
    assert lasting.claim.startswith("claims/results/")  # its readers may come late


async def test_a_model_that_loads_slowly_does_not_stop_another(site: Installation) -> None:
    site.add_device("slow", load_ms=2500)
    site.add_device("quick")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        slow, _ = await client.send("slow", rows_request(_ROW))
        quick, _ = await client.send("quick", rows_request(_ROW))
        of_quick = (await (await client.results("quick")).answered([quick]))[quick]
        of_slow = (await (await client.results("slow")).answered([slow]))[slow]
    assert of_quick.finished_ms < of_slow.finished_ms - 1000
    assert msgspec.convert(response_of(of_slow).parameters, Timings).load_us >= 2_000_000


async def test_models_and_results_live_in_s3(site: Installation, s3_bucket_url: str) -> None:
    write_model(site.directory / "local", "sums", add_sub())
    models = open_store(f"{s3_bucket_url}/models")
    models.put("sums/1/model.onnx", (site.directory / "local/sums/1/model.onnx").read_bytes())
    buckets = {"repository": f"{s3_bucket_url}/models", "store": f"{s3_bucket_url}/outcomes"}
    request = rows_request(_ROW)
    both = msgspec.structs.replace(
        request, inputs=(*request.inputs, msgspec.structs.replace(request.inputs[0], name="INPUT1"))
    )
    async with client_of(site) as client, site.worker(**buckets) as worker:
        await worker.ready()
        id_, origin = await client.send("sums", both, stored=True)
        recorded = (await (await client.results("sums")).answered([id_]))[id_]
        key = await client.outcome_key(origin)
    assert values_of(recorded) == [2, 4, 6, 8]
    assert decode_stored(open_store(buckets["store"]).get(key)) == recorded


async def test_announced_topics_have_a_committed_offset_on_every_partition_before_any_worker(
    site: Installation,
) -> None:
    site.add_device("dev")
    environment = site.environment(partitions=3)
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "workers", "announce"], env=environment, check=True, timeout=30
    )
    async with client_of(site) as client:
        progress = await client.progress("dev", partitions=3)
        control = await (await client.read(client.topics.control)).everything()
    assert [None if one is None else one.committed for one in progress] == [0, 0, 0]
    assert [record.key for record in control.records] == [b"model/dev"]


async def test_an_idle_worker_has_loaded_no_model_runtime_and_no_s3_client(site: Installation) -> None:
    write_model(
        site.repository,
        "sums",
        add_sub(),
        config='backend: "onnxruntime" max_batch_size: 8\n'
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } input { name: "INPUT1" data_type: TYPE_FP32 dims: 4 }\n'
        'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }\n',
    )
    async with site.worker() as worker:
        await worker.ready()
        assert "onnxruntime" not in worker.maps()
        assert worker.resident_bytes() < 150 << 20
    program = "import sys, workers.serve; print(*{'boto3', 'botocore', 'onnxruntime'} & set(sys.modules))"
    command = [sys.executable, "-c", program]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


async def test_a_bounded_queue_pauses_only_its_own_topic(site: Installation) -> None:
    site.add_device("full", max_batch_size=1, execute_base_ms=40)
    site.add_device("free")
    async with client_of(site) as client, site.worker(max_queued_requests=4) as worker:
        await worker.ready()
        flood = await client.send_many("full", [rows_request([float(n)]) for n in range(40)])
        single, _ = await client.send("free", rows_request(_ROW))
        of_free = (await (await client.results("free")).answered([single]))[single]
        of_full = await (await client.results("full")).answered(id_ for id_, _ in flood)
    assert [values_of(of_full[id_]) for id_, _ in flood] == [[float(n)] for n in range(40)]
    assert of_free.finished_ms < of_full[flood[-1][0]].finished_ms


async def test_requests_of_different_shapes_are_both_served(site: Installation) -> None:
    site.add_device("dev", delay_us=50_000)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        requests = [rows_request([float(n)] * (1 + n % 2)) for n in range(6)]
        sent = await client.send_many("dev", requests)
        outcomes = await (await client.results("dev")).answered(id_ for id_, _ in sent)
    assert [values_of(outcomes[id_]) for id_, _ in sent] == [[float(n)] * (1 + n % 2) for n in range(6)]


async def test_metrics_and_health_tell_what_was_done(site: Installation) -> None:
    site.add_device("dev")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        sent = await client.send_many("dev", [rows_request(_ROW)] * 3)
        await (await client.results("dev")).answered(id_ for id_, _ in sent)
        assert worker.metric("tidegate_batch_rows_sum", model="dev") == 3
        assert worker.metric("tidegate_outcomes_total", topic=Origin.parse(str(sent[0][1])).topic) == 3
        assert worker.metric("tidegate_worker_state", tidegate_worker_state="serving") == 1
        assert worker.get("/health/live").status_code == 200
        assert worker.get("/nothing").status_code == 404
