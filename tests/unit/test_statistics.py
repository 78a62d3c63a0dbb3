"""What is counted of each model, and what of it a report tells: everything once, and never more than fits."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.model import ModelRef
from schemas.worker_report import LATENCY_BOUNDS_MS
from workers.model_states import ModelStates, told_models
from workers.resident import ModelKey
from workers.statistics import ModelCounters, Statistics

_REF = ModelRef("m", "1")


def key(fingerprint: str = "", *, name: str = "m") -> ModelKey:
    return ModelKey(ModelRef(name, "1"), fingerprint)


def test_nothing_was_done_before_anything_was() -> None:
    statistics = Statistics()
    counters = statistics.of(_REF)
    assert statistics.of(_REF) is counters
    assert statistics.used() == {}
    counters.note_failure(5)
    assert statistics.used() == {_REF: counters}
    statistics.forget([_REF, ModelRef("gone", "1")])
    assert statistics.used() == {}


def test_a_batch_counts_for_its_size_and_each_request_of_it_for_its_parts() -> None:
    counters = ModelCounters()
    counters.note_batch(3, 10, 1000, 77)
    counters.note_answers(3, [0, 500], 600, 2000, (10, 1000, 30))
    told = counters.told(_REF)
    assert (told.name, told.version, told.rows, told.batches, told.last_inference_ms) == ("m", "1", 3, 1, 77)
    assert (told.success.count, told.success.total_us) == (2, 2000 + 1500)
    assert (told.queue.count, told.queue.total_us) == (2, 600 + 100)
    assert (told.assemble.total_us, told.infer.total_us, told.answer.total_us) == (20, 2000, 60)
    [size] = told.batch_sizes
    assert (size.rows, size.count, size.assemble_us, size.infer_us, size.answer_us) == (3, 1, 10, 1000, 30)
    assert counters.told(_REF) is told
    counters.note_failure(7)
    assert (counters.told(_REF).fail.count, counters.told(_REF).fail.total_us) == (1, 7)


@given(st.lists(st.integers(0, 100_000_000), max_size=50))
@example([int(1000 * bound_ms) for bound_ms in LATENCY_BOUNDS_MS])
def test_each_latency_is_counted_at_the_first_bound_that_it_keeps(latencies_us: list[int]) -> None:
    counters = ModelCounters()
    counters.note_answers(1, [-took_us for took_us in latencies_us], 0, 0, (0, 0, 0))
    told = counters.told(_REF).latency_counts or (0,) * (len(LATENCY_BOUNDS_MS) + 1)
    assert sum(told) == len(latencies_us)
    for index, bound_ms in enumerate(LATENCY_BOUNDS_MS):
        assert sum(told[: index + 1]) == sum(took_us <= 1000 * bound_ms for took_us in latencies_us)


def test_batch_sizes_beyond_64_count_in_the_totals_only() -> None:
    counters = ModelCounters()
    for rows in range(1, 101):
        counters.note_batch(rows, 1, 2, 3)
        counters.note_answers(rows, [0], 0, 9, (1, 2, 3))
    told = counters.told(_REF)
    assert (len(told.batch_sizes), told.batches, told.rows) == (64, 100, 5050)


def test_a_thousand_busy_models_fit_into_one_record_and_the_latest_are_told_in_full() -> None:
    statistics = Statistics()
    for number in range(1000):
        counters = statistics.of(ModelRef(f"a-model-with-quite-a-long-name-{number:04}", "1"))
        for rows in range(1, 65):
            counters.note_batch(rows, 123_456, 123_456_789, 1_790_000_000_000 + number)
            counters.note_answers(rows, [-12_345] * 1000, 10, 1_000_000, (123_456, 123_456_789, 1_234_567))
    models, size_bytes = told_models(statistics.used(), ModelStates(), {})
    assert size_bytes <= 512 * 1024
    assert len(msgspec.json.encode(models)) < 600_000
    assert models[0].name.endswith("0999")
    assert len(models[0].batch_sizes) == 64
    assert models[-1].batch_sizes == ()
    assert len(models) > 700


def test_models_in_memory_are_told_though_nobody_has_used_them_and_unloaded_ones_only_if_used() -> None:
    statistics, states = Statistics(), ModelStates()
    statistics.of(ModelRef("idle", "1"))
    statistics.of(ModelRef("used", "1")).note_failure(1)
    assert states.note(key(name="loaded"), "ready")
    models, _ = told_models(statistics.used(), states, {ModelRef("loaded", "1"): 5})
    assert [(model.name, model.state, model.memory_bytes) for model in models] == [
        ("loaded", "ready", 5),
        ("used", "unloaded", 0),
    ]


def test_the_better_of_two_states_of_a_version_counts_and_only_changes_are_news() -> None:
    states = ModelStates()
    assert states.note(key("old"), "fetching")
    assert not states.note(key("old"), "fetching")
    assert states.note(key("old"), "ready")
    assert not states.note(key("new"), "fetching")
    assert not states.note(key("new"), "failed", "a bad file")
    assert states.of(_REF) == ("ready", "")
    assert states.note(key("old"), "cold")
    assert states.of(_REF) == ("unloaded", "")


def test_a_failure_is_told_until_other_files_come() -> None:
    states = ModelStates()
    states.note(key("old"), "failed", "r" * 5000)
    state, reason = states.of(_REF)
    assert (state, len(reason)) == ("failed", 300)
    assert states.known() == {_REF}
    states.note(key("new"), "loading")
    assert states.of(_REF) == ("loading", "")
    states.note(key("new"), "cold")
    assert states.known() == set()
