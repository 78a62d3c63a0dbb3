import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.load_meter import LoadMeter
from workers.memory_ledger import MemoryLedger


def test_what_nobody_uses_makes_room_least_recently_used_first() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 100})
    for name in "abc":
        ledger.reserve(name, {"cpu": 30})
        ledger.unpin(name)
    ledger.pin("a")
    ledger.unpin("a")  # a is now the one used last
    assert ledger.victims({"cpu": 10}) == []
    assert ledger.victims({"cpu": 11}) == ["b"]
    assert ledger.victims({"cpu": 70}) == ["b", "c"]


def test_a_long_tail_does_not_push_out_what_is_used_again_and_again() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 100})
    for name in ("hot1", "hot2"):
        ledger.reserve(name, {"cpu": 40})
        ledger.unpin(name)
        ledger.pin(name)
        ledger.unpin(name)
    for number in range(10):  # each is used once, and later than the hot ones were
        for victim in ledger.victims({"cpu": 20}) or []:
            ledger.release(victim)
        ledger.reserve(f"cold{number}", {"cpu": 20})
        ledger.unpin(f"cold{number}")
    assert ledger.held == {"cpu": 100}
    assert ledger.victims({"cpu": 20}) == ["cold9"]
    assert ledger.victims({"cpu": 60}) == ["cold9", "hot1"]


def test_what_is_protected_is_bounded_so_that_a_new_hot_model_gets_in() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 100})
    for number in range(10):
        ledger.reserve(f"m{number}", {"cpu": 10})
        ledger.unpin(f"m{number}")
    for number in range(10):
        ledger.pin(f"m{number}")
        ledger.unpin(f"m{number}")
    assert ledger.victims({"cpu": 20}) == ["m0", "m1"]  # of ten that were used twice, eight are protected


def test_what_is_in_use_stays() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 100})
    ledger.reserve("a", {"cpu": 60})
    ledger.reserve("b", {"cpu": 30})
    ledger.unpin("b")
    assert ledger.victims({"cpu": 60}) is None
    assert ledger.victims({"cpu": 40}) == ["b"]
    ledger.unpin("a")
    assert ledger.victims({"cpu": 60}) == ["b", "a"]


def test_only_those_go_that_hold_what_is_lacking() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 100, "gpu0": 100})
    ledger.reserve("on cpu", {"cpu": 90})
    ledger.reserve("on gpu", {"gpu0": 90, "cpu": 1})
    ledger.unpin("on cpu")
    ledger.unpin("on gpu")
    assert ledger.victims({"gpu0": 20}) == ["on gpu"]


def test_a_device_without_a_budget_has_no_limit() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 1})
    ledger.reserve("a", {"gpu7": 10**12})
    assert ledger.victims({"gpu7": 10**12}) == []
    assert ledger.excess({"gpu7": 10**12}) is None
    assert ledger.excess({"gpu7": 1, "cpu": 2}) == ("cpu", 1)


def test_a_measurement_replaces_what_was_reserved() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({"cpu": 100})
    ledger.reserve("a", {"cpu": 40})
    ledger.settle("a", {"cpu": 70, "gpu0": 5})
    assert ledger.held == {"cpu": 70, "gpu0": 5}
    ledger.release("a")
    ledger.release("a")
    assert ledger.held == {"cpu": 0, "gpu0": 0}


def test_nothing_is_held_twice() -> None:
    ledger: MemoryLedger[str] = MemoryLedger({})
    ledger.reserve("a", {})
    with pytest.raises(ValueError, match="holds memory"):
        ledger.reserve("a", {})


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60), st.booleans()), max_size=60))
def test_whoever_goes_for_room_the_budget_is_kept_and_the_sum_is_right(loads: list[tuple[int, int, bool]]) -> None:
    ledger: MemoryLedger[int] = MemoryLedger({"cpu": 100})
    held: dict[int, int] = {}
    pinned: set[int] = set()
    for name, size, stays in loads:
        if name in held:
            if name in pinned:
                ledger.unpin(name)
                pinned.discard(name)
            continue
        victims = ledger.victims({"cpu": size})
        if victims is None:
            assert sum(held[other] for other in pinned) + size > 100
            continue
        assert not pinned & set(victims)
        for victim in victims:
            ledger.release(victim)
            del held[victim]
        ledger.reserve(name, {"cpu": size})
        held[name] = size
        pinned.add(name)
        if not stays:
            ledger.unpin(name)
            pinned.discard(name)
        assert ledger.held["cpu"] == sum(held.values()) <= 100


def test_a_load_alone_is_measured_exactly() -> None:
    meter: LoadMeter[str] = LoadMeter()
    meter.begin("a", expected_bytes=10, used_bytes=1000)
    assert meter.end("a", used_bytes=1500) == 500
    meter.begin("b", expected_bytes=10, used_bytes=9000)
    assert meter.end("b", used_bytes=9001) == 1


def test_loads_that_overlap_share_the_growth_by_what_they_expect() -> None:
    meter: LoadMeter[str] = LoadMeter()
    meter.begin("small", expected_bytes=100, used_bytes=0)
    meter.begin("large", expected_bytes=300, used_bytes=0)
    assert meter.end("small", used_bytes=400) == 100
    assert meter.end("large", used_bytes=450) == 350


def test_memory_that_shrinks_meanwhile_is_no_negative_size() -> None:
    meter: LoadMeter[str] = LoadMeter()
    meter.begin("a", expected_bytes=10, used_bytes=1000)
    assert meter.end("a", used_bytes=10) == 0


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 500)), min_size=1, max_size=20))
def test_all_shares_together_are_the_growth(steps: list[tuple[int, int]]) -> None:
    meter: LoadMeter[int] = LoadMeter()
    used = 0
    for number, (expected, _) in enumerate(steps):
        meter.begin(number, expected_bytes=expected, used_bytes=used)
        used += steps[number][1]
    shares = [meter.end(number, used_bytes=used) for number in range(len(steps))]
    assert abs(sum(shares) - used) <= len(steps)
