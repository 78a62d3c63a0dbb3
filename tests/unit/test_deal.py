"""Partitions are dealt out evenly, to who may read them, and with as few moves as that takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.deal import Claim, deal
from workers.holdings import Key

topics = st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(1, 6), min_size=1)
members = st.sets(st.sampled_from("abcd"), min_size=1)


def all_of(partitions: dict[str, int]) -> set[Key]:
    return {(topic, number) for topic, count in partitions.items() for number in range(count)}


def owned_by(chooser: st.DataObject, keys: set[Key], names: set[str]) -> dict[str, set[Key]]:
    """Each partition has one owner among these, or none."""
    owners = {key: chooser.draw(st.sampled_from([None, *sorted(names)])) for key in sorted(keys)}
    return {name: {key for key in keys if owners[key] == name} for name in names}


@given(topics, members)
def test_what_nobody_owns_is_dealt_out_whole_and_evenly(partitions: dict[str, int], names: set[str]) -> None:
    dealt = deal(partitions, {name: Claim(partitions.keys()) for name in names})
    keys = [key for hand in dealt.values() for key in hand]
    assert sorted(keys) == sorted(all_of(partitions))
    assert max(map(len, dealt.values())) - min(map(len, dealt.values())) <= 1


@given(topics, members, st.data())
def test_nothing_is_given_to_two_and_nothing_is_taken_that_balance_does_not_need(
    partitions: dict[str, int], names: set[str], chooser: st.DataObject
) -> None:
    keys = all_of(partitions)
    owned = owned_by(chooser, keys, names)
    dealt = deal(partitions, {name: Claim(partitions.keys(), owned[name], 1) for name in names})
    for name in names:
        others = set().union(*(owned[other] for other in names - {name}))
        assert not others & set(dealt[name])
        # Who has no more than its share keeps all of it, who has more keeps its share.
        assert len(owned[name] & set(dealt[name])) >= min(len(owned[name]), len(keys) // len(names))
    # When each has let go of what it is not dealt again, the next round gives it all to somebody.
    left = {name: Claim(partitions.keys(), owned[name] & set(dealt[name]), 2) for name in names}
    again = deal(partitions, {name: Claim(partitions.keys(), dealt[name], 2) for name in names})
    assert sorted(key for hand in again.values() for key in hand) == sorted(keys)
    assert max(map(len, again.values())) - min(map(len, again.values())) <= 1
    assert all(set(left[name].owned) <= set(again[name]) for name in names)


@given(topics, members, st.data())
def test_a_partition_goes_only_to_who_reads_its_topic(
    partitions: dict[str, int], names: set[str], chooser: st.DataObject
) -> None:
    reads = {name: chooser.draw(st.sets(st.sampled_from(sorted(partitions)))) for name in sorted(names)}
    owned = owned_by(chooser, all_of(partitions), names)
    dealt = deal(partitions, {name: Claim(reads[name], owned[name], 1) for name in names})
    for name, hand in dealt.items():
        assert {topic for topic, _ in hand} <= reads[name]


def test_each_topic_is_spread_over_the_members() -> None:
    partitions = {"t": 4, "u": 4}
    dealt = deal(partitions, {"a": Claim(partitions.keys()), "b": Claim(partitions.keys())})
    assert {name: sorted(topic for topic, _ in hand) for name, hand in dealt.items()} == {
        "a": ["t", "t", "u", "u"],
        "b": ["t", "t", "u", "u"],
    }
    claims = {"a": Claim(partitions.keys(), all_of(partitions), 1), "b": Claim(partitions.keys())}
    kept = deal(partitions, claims)["a"]
    assert sorted(topic for topic, _ in kept) == ["t", "t", "u", "u"]


def test_of_two_who_claim_a_partition_the_later_generation_owns_it() -> None:
    claims = {"old": Claim({"t"}, [("t", 0), ("t", 1)], 3), "new": Claim({"t"}, [("t", 0)], 7)}
    assert deal({"t": 2}, claims) == {"old": [("t", 1)], "new": [("t", 0)]}


def test_what_is_no_more_is_dealt_to_nobody() -> None:
    claims = {"a": Claim({"t", "gone"}, [("t", 0), ("t", 5), ("gone", 0)], 1)}
    assert deal({"t": 1}, claims) == {"a": [("t", 0)]}
