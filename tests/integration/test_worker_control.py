"""What workers follow and tell on the control topic: wishes, reports with statistics, configuration and labels."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from local.kafka import LocalKafka
from schemas.control import ModelAnnouncement, announcement_key, decode_announcement
from schemas.deadline import Deadline
from schemas.wish import ModelWish
from schemas.worker_report import WorkerReport, report_key
from tests.integration.control_client import ControlClient, latest, reports
from tests.integration.topic_client import Read, TopicClient, rows_request
from tests.integration.worker_process import Installation
from tests.models import add_sub, write_model

pytestmark = pytest.mark.kafka


@pytest.fixture
def site(kafka: LocalKafka, prefix: str, tmp_path: Path) -> Installation:
    return Installation(kafka.bootstrap, prefix, tmp_path)


def client_of(site: Installation) -> TopicClient:
    return TopicClient(site.bootstrap, site.prefix)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_a_wish_loads_and_unloads_on_every_worker_and_a_request_loads_again(site: Installation) -> None:
    site.add_device("dev")
    (site.repository / "dev" / "1" / "weights").write_bytes(bytes(200_000))
    async with client_of(site) as client, site.worker(pool="a") as first, site.worker(pool="a") as second:
        await first.ready()
        await second.ready()
        control = ControlClient(client)
        await control.load("dev")
        for worker in (first, second):
            await worker.logged('"load_model"', '"dev/1"')
        told = await control.model("dev", lambda model: model.state == "ready")
        assert told.memory_bytes >= 200_000
        assert told.success.count == 0
        await control.unload("dev")
        for worker in (first, second):
            await worker.logged('"unload_model"', '"dev/1"')
        id_, _ = await client.send("dev", rows_request([1.0]))
        await (await client.results("dev")).answered([id_])
        await control.model("dev", lambda model: model.state == "ready" and model.success.count == 1)


async def test_a_worker_that_starts_fulfils_recent_wishes_only(site: Installation) -> None:
    for name in ("recent", "old", "other"):
        site.add_device(name)
    async with client_of(site) as client:
        await client.provision("recent", "old", "other")
        control = ControlClient(client)
        await control.wish(ModelWish("load", now_ms() - 3_600_000), "old")
        await control.wish(ModelWish("load", now_ms(), "1"), "recent")
        await control.load("nobody-has-this")
        await control.load("other", "17")
        async with site.worker() as worker:
            await worker.logged('"load_model"', '"recent/1"')
            failed = await worker.logged('"wish_failed"', '"other"')
            await worker.ready()
            await control.model("recent", lambda model: model.state == "ready")
    assert "17" in failed
    assert not any('"old/1"' in line for line in worker.lines)


async def test_an_unload_waits_for_what_runs(site: Installation) -> None:
    site.add_device("dev", execute_base_ms=1500)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        control = ControlClient(client)
        id_, _ = await client.send("dev", rows_request([1.0]))
        await worker.logged('"load_model"')
        await control.unload("dev")
        await worker.logged('"fulfil_wish"', '"unload"')
        assert not any('"unload_model"' in line for line in worker.lines)
        outcome = (await (await client.results("dev")).answered([id_]))[id_]
        assert outcome.error() is None
        await worker.logged('"unload_model"')
        await control.model("dev", lambda model: model.state == "unloaded" and model.success.count == 1)


async def test_a_wish_that_fails_is_told_as_the_models_state_with_its_reason(site: Installation) -> None:
    config = """
    backend: "onnxruntime" max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_FP32 dims: 4 } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }
    """
    version = write_model(site.repository, "broken", None, config=config)
    (version / "model.onnx").write_bytes(b"no model at all")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        control = ControlClient(client)
        await control.load("broken")
        told = await control.model("broken", lambda model: model.state == "failed")
        await worker.logged('"wish_failed"', '"broken"')
    assert "failed to load" in told.reason or "broken" in told.reason


async def test_statistics_add_up_to_what_was_sent(site: Installation) -> None:
    site.add_device("dev", max_batch_size=8, execute_base_ms=20, fail_value=666)
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        control = ControlClient(client)
        good = await client.send_many("dev", [rows_request([float(n)], [1.0]) for n in range(40)])
        poison = await client.send_many("dev", [rows_request([666.0])] * 3)
        expired = await client.send_many("dev", [rows_request([1.0])] * 2, deadline=Deadline(now_ms() - 1))
        unreadable = [await client.send_raw("dev", b"no request") for _ in range(2)]
        everyone = [*(id_ for id_, _ in [*good, *poison, *expired]), *map(str, unreadable)]
        await (await client.results("dev")).answered(everyone)
        told = await control.model("dev", lambda model: model.success.count + model.fail.count == 47)
    assert (told.success.count, told.fail.count) == (40, 7)
    assert told.queue.count == told.assemble.count == told.infer.count == told.answer.count == 40
    assert told.rows == 83
    assert sum(size.count for size in told.batch_sizes) == told.batches
    assert sum(size.count * size.rows for size in told.batch_sizes) == told.rows
    assert sum(told.latency_counts) == 40
    assert told.infer.total_us >= 40 * 20_000
    assert told.success.total_us >= told.queue.total_us + told.infer.total_us
    assert 0 <= now_ms() - told.last_inference_ms < 120_000


async def test_a_worker_tells_what_it_is_until_it_has_stopped_in_good_order(site: Installation) -> None:
    site.add_device("dev")
    async with client_of(site) as client, site.worker(pool="blue") as worker:
        await worker.ready()
        control = ControlClient(client)

        def is_serving(report: WorkerReport) -> bool:
            return report.state == "serving"

        report = await control.report(is_serving)
        read = await control.read()
        await read.until(lambda read: len([1 for _, told in reports(read) if told and is_serving(told)]) >= 3)
        [id_] = {worker_id for worker_id, _ in reports(read)}
        worker.terminate()
        assert await worker.ended() == 0
        await control.removed(report_key(id_))
        assert [told.state for _, told in reports(read) if told is not None][-1] in ("serving", "draining")
    assert (report.pool, report.devices[0], report.models) == ("blue", "cpu", ())
    assert report.host
    assert report.version


async def test_announcements_tell_the_configuration_that_is_served_and_the_labels(site: Installation) -> None:
    write_model(site.repository, "sums", add_sub())
    site.add_device("named")
    config = site.repository / "named" / "config.pbtxt"
    config.write_text(
        config.read_text().replace('output { name: "OUTPUT0"', 'output { name: "OUTPUT0" label_filename: "classes.txt"')
    )
    (site.repository / "named" / "classes.txt").write_text("cat\ndog\n")
    async with client_of(site) as client, site.worker() as worker:
        await worker.ready()
        read = await (await ControlClient(client).read()).everything()
        named, sums = _announced(read, "named"), _announced(read, "sums")
    assert named.labels == {"OUTPUT0": ("cat", "dog")}
    assert named.config is not None
    assert sums.config is not None
    assert named.config["output"][0]["label_filename"] == "classes.txt"
    told = sums.config
    assert (told["name"], told["backend"], told["max_batch_size"]) == ("sums", "onnxruntime", 32)
    assert [(field["name"], field["data_type"], field["dims"]) for field in told["input"]] == [
        ("INPUT0", "TYPE_FP32", [4]),
        ("INPUT1", "TYPE_FP32", [4]),
    ]
    assert [field["name"] for field in told["output"]] == ["OUTPUT0", "OUTPUT1"]


def _announced(read: Read, model: str) -> ModelAnnouncement:
    key = announcement_key(model)
    told = decode_announcement(key, latest(read, key))
    assert told is not None
    assert told[1] is not None
    return told[1]
