"""The pure parts of the gateway: preferences, settings, problems, catalogue, backlog, leases, the life's edges."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from gateway.backlog import PartitionBacklog
from gateway.catalogue import Catalogue
from gateway.kafka_client import Commit
from gateway.lease import holder, lease, pick_partition
from gateway.metrics import Metrics
from gateway.preferences import Preferences, parse_preferences
from gateway.problem import problem_response
from gateway.service import Service, State
from gateway.settings import GatewaySettings
from schemas.control import (
    LoadProgress,
    ModelAnnouncement,
    announcement_key,
    encode_announcement,
    encode_load_progress,
    loading_key,
)
from schemas.errors import ErrorCode, InferenceError, invalid
from schemas.model import ModelMetadata
from schemas.progress import Progress

KEY = SecretStr("0123456789abcdef")
NOW_MS = 1_700_000_000_000


def announcement(name: str, *, pool: str = "pool") -> ModelAnnouncement:
    return ModelAnnouncement(ModelMetadata(name, ("1",), "echo", 0, (), ()), pool, f"t.infer.{name}", 1, 1)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([b"respond-async"], Preferences(True)),
        ([b"Respond-Async, wait=10"], Preferences(True, 10)),
        ([b"respond-async", b"wait=3"], Preferences(True, 3)),
        ([b'wait="7"; foo=bar'], Preferences(False, 7)),
        ([b"wait=0"], Preferences(False, 0)),
        ([b"wait=5, wait=9"], Preferences(False, 5)),  # the first of a name counts
        ([b"wait=-1, wait=x, wait, handling=lenient"], Preferences()),
        ([b""], Preferences()),
        ([b"\xff\xfe,,;=;"], Preferences()),
    ],
)
def test_preferences_are_read_as_rfc_7240_says(values: list[bytes], wanted: Preferences) -> None:
    assert parse_preferences(values) == wanted


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_preference_is_read_without_an_error(values: list[bytes]) -> None:
    parse_preferences(values)


def test_the_applied_preference_tells_what_was_done() -> None:
    both = Preferences(True, 5)
    assert both.applied(accepted=True) == b"respond-async, wait=5"
    assert both.applied(accepted=False) == b"wait=5"
    assert Preferences(True).applied(accepted=False) == b""


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_JOB_KEY", "0123456789abcdef")
    monkeypatch.setenv("TIDEGATE_WAIT_S", "1.5")
    settings = GatewaySettings()  # type: ignore[call-arg]  # the key comes from the environment
    assert settings.wait_s == 1.5
    assert "0123456789abcdef" not in repr(settings)


@pytest.mark.parametrize(
    "wrong", [{"job_key": "short"}, {"prefix": "a.b"}, {"wait_s": -1}, {"claim_above_bytes": 10**9}, {"port": 70000}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings(**{"job_key": KEY, **wrong})


def test_a_missing_job_key_is_answered_with_how_to_make_one() -> None:
    ran = subprocess.run([sys.executable, "-m", "gateway"], capture_output=True, text=True, env={}, check=False)
    assert ran.returncode == 2
    assert "openssl rand -hex 32" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_help_teaches_every_setting_and_its_environment_variable() -> None:
    ran = subprocess.run([sys.executable, "-m", "gateway", "--help"], capture_output=True, text=True, check=True)
    for name, field in GatewaySettings.model_fields.items():
        assert "--" + name.replace("_", "-") in ran.stdout
        assert field.description
    assert "TIDEGATE_KAFKA_BOOTSTRAP" in ran.stdout


def test_importing_the_gateway_brings_no_ml_library_and_no_s3_client() -> None:
    code = "import gateway.__main__, sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"numpy", "boto3", "botocore", "torch", "onnxruntime", "tensorrt", "tritonclient", "kafka"}
    assert heavy.isdisjoint(json.loads(ran.stdout))


def test_a_problem_names_field_value_and_remedy() -> None:
    error = invalid("input 'x' is wrong", field="inputs.x.shape", value=[1], remedy="send [4]")
    status, headers, body = problem_response(error, request_id="r1")
    document = json.loads(body)
    assert status == document["status"] == 400
    assert dict(headers)[b"content-type"] == b"application/problem+json"
    assert document["type"] == "/errors/invalid_request"
    assert (document["field"], document["value"], document["remedy"]) == ("inputs.x.shape", "[1]", "send [4]")
    assert document["error"] == document["detail"] == "input 'x' is wrong"
    assert document["request_id"] == "r1"
    assert document["retryable"] is False


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_has_a_problem_and_those_worth_a_retry_say_when(code: ErrorCode) -> None:
    status, headers, body = problem_response(InferenceError(code, "m"))
    assert status == code.http_status
    assert json.loads(body)["code"] == code.wire
    assert (b"retry-after" in dict(headers)) == code.retryable


def test_the_catalogue_follows_announcements_and_withdrawals() -> None:
    heard: list[ModelAnnouncement] = []
    catalogue = Catalogue(on_announced=heard.append)
    with pytest.raises(InferenceError) as doubt:
        catalogue.model("m")
    assert doubt.value.code is ErrorCode.UNAVAILABLE  # not all is known yet
    catalogue.complete = True
    model = announcement("m")
    catalogue.apply(announcement_key("m"), encode_announcement(model))
    catalogue.apply(announcement_key("m"), encode_announcement(model))
    catalogue.apply(b"something/else", b"")
    catalogue.apply(announcement_key("bad"), b"{")
    assert catalogue.model("m") == model
    assert catalogue.of_topic("t.infer.m") == model
    assert catalogue.pool("pool") == (model,)
    assert heard == [model]
    catalogue.apply(announcement_key("m"), None)
    with pytest.raises(InferenceError) as unknown:
        catalogue.model("m")
    assert unknown.value.code is ErrorCode.MODEL_NOT_FOUND
    with pytest.raises(InferenceError):
        catalogue.pool("pool")


def test_the_catalogue_tells_what_is_being_loaded_unless_its_worker_may_have_died() -> None:
    catalogue = Catalogue()
    catalogue.apply(loading_key("m"), encode_load_progress(LoadProgress("3", 0.25, NOW_MS)))
    catalogue.apply(loading_key("bad"), b"{")
    found = catalogue.loading("m", NOW_MS + 30_000)
    assert found is not None
    assert (found.version, found.fetched_ratio) == ("3", 0.25)
    assert catalogue.loading("m", NOW_MS + 30_001) is None
    assert catalogue.loading("bad", NOW_MS) is None
    catalogue.apply(loading_key("m"), None)
    assert catalogue.loading("m", NOW_MS) is None


@given(st.sets(st.integers(0, 60)), st.integers(0, 20), st.integers(0, 80))
def test_a_position_counts_what_is_before_and_not_done(done: set[int], committed: int, offset: int) -> None:
    above = sorted(number for number in done if number > committed)
    runs: list[tuple[int, int]] = []
    for number in above:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    partition = PartitionBacklog(Progress(committed, committed, tuple(runs)), 100)
    assert partition.ahead_of(offset) == sum(1 for at in range(committed, offset) if at not in above)


def test_a_partition_is_held_as_long_as_its_gateway_commits() -> None:
    commit = Commit(5, lease("abc", now_ms=NOW_MS))
    assert holder(commit, now_ms=NOW_MS + 14_000) == "abc"
    assert holder(commit, now_ms=NOW_MS + 16_000) == ""
    assert holder(Commit(5, ""), now_ms=NOW_MS) == ""
    assert holder(Commit(5, "what is this"), now_ms=NOW_MS) == ""
    assert holder(None, now_ms=NOW_MS) == ""


@given(st.integers(1, 8), st.sets(st.integers(0, 7)), st.randoms(use_true_random=False))
def test_a_partition_that_nobody_holds_is_preferred(count: int, held: set[int], rng: random.Random) -> None:
    held = {partition for partition in held if partition < count}
    commits = {partition: Commit(0, lease("other", now_ms=NOW_MS)) for partition in held}
    picked = pick_partition(commits, count, now_ms=NOW_MS, rng=rng)
    assert 0 <= picked < count
    assert picked not in held or len(held) == count


async def test_a_stop_before_the_start_is_kept() -> None:
    service = Service(GatewaySettings(job_key=KEY))
    thread = threading.Thread(target=service.stop)
    thread.start()
    thread.join()
    service.stop()
    await service.run()
    assert service.state is State.STOPPED


def test_responses_are_counted_by_status_and_duration() -> None:
    metrics = Metrics()
    metrics.responses.add(200, 0.0012)
    metrics.responses.add(200, 100.0)
    metrics.responses.add(429, 0.0001)
    text = metrics.exposition().decode()
    assert 'tidegate_gateway_responses_total{status="200"} 2.0' in text
    assert 'tidegate_gateway_request_seconds_bucket{le="0.001"} 1.0' in text
    assert 'tidegate_gateway_request_seconds_bucket{le="0.0025"} 2.0' in text
    assert "tidegate_gateway_request_seconds_count 3.0" in text
