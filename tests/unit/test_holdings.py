"""Partitions move between members without ever having two owners, whoever comes, goes and dies meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.progress import Progress
from schemas.record import Origin
from workers.acks import AckTracker
from workers.arrival import BrokerClock
from workers.deal import Claim, deal
from workers.delivery import Delivery, Partition
from workers.holdings import Holdings, Key, inherited
from workers.receipts import Receipts

ALL: list[Key] = [("t", number) for number in range(4)]


def partition_of(key: Key) -> Partition:
    return Partition(*key, AckTracker(Progress(0, 0)), BrokerClock())


def holdings_of(*keys: Key) -> Holdings:
    holdings = Holdings()
    for key in keys:
        holdings.add(partition_of(key))
    return holdings


def delivery_of(partition: Partition, offset: int) -> Delivery:
    partition.tracker.deliver(offset)
    return Delivery(partition, Origin(partition.topic, partition.number, offset), 0, (), b"")


class Group:
    """What a broker and its leader do, round by round; it fails when a partition has two owners."""

    def __init__(self) -> None:
        self.members: dict[str, Holdings] = {}
        self.generations: dict[str, int] = {}
        self.rejoin = False

    def round(self, during: set[str]) -> None:
        """`during`: who releases while the round is under way."""
        claims = {
            name: Claim({"t"}, member.claim(), self.generations.get(name, -1)) for name, member in self.members.items()
        }
        for name in during & self.members.keys():
            self.release(name)
        self.rejoin = False  # what is asked for while a round is under way is not heard
        for name, keys in deal({"t": len(ALL)}, claims).items():
            member = self.members[name]
            for key in member.assign(keys):
                member.add(partition_of(key))
            self.generations[name] = self.generations.get(name, -1) + 1
            self.rejoin |= member.is_stale(keys)
        owned = [key for member in self.members.values() for key in (*member.held, *member.parting)]
        assert len(owned) == len(set(owned))

    def release(self, name: str) -> None:
        member = self.members[name]
        self.rejoin |= bool(member.parting)
        member.release(list(member.parting))


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "kill", "release", "round", "round"]),
        st.sampled_from("abcd"),
        st.sets(st.sampled_from("abcd")),
    ),
    max_size=30,
)


@given(steps, st.sets(st.sampled_from("abcd")))
def test_a_partition_never_has_two_owners_and_in_the_end_all_are_held(
    script: list[tuple[str, str, set[str]]], last: set[str]
) -> None:
    group = Group()
    group.members["a"] = Holdings()
    for action, name, during in script:
        if action == "join":
            group.members.setdefault(name, Holdings())
        elif action == "kill" and len(group.members) > 1:
            group.members.pop(name, None)
            group.generations.pop(name, None)
        elif action == "release" and name in group.members:
            group.release(name)
        elif action == "round":
            group.round(during)
    group.round(last)
    rounds = 0
    while any(member.parting for member in group.members.values()) or group.rejoin:
        for name in group.members:
            group.release(name)
        group.round(set())
        rounds += 1
        assert rounds <= 3
    assert sorted(key for member in group.members.values() for key in member.held) == ALL
    sizes = [len(member.held) for member in group.members.values()]
    assert max(sizes) - min(sizes) <= 1


def test_a_round_that_no_one_is_new_to_changes_nothing() -> None:
    holdings = holdings_of(*ALL)
    before = dict(holdings.held)
    assert holdings.claim() == ALL
    assert holdings.assign(ALL) == []
    assert holdings.held == before
    assert not holdings.parting


def test_what_is_parted_with_begins_nothing_more_and_stays_committed_until_it_is_released() -> None:
    holdings, receipts = holdings_of(*ALL), Receipts()
    partition = holdings.held[ALL[0]]
    delivery = delivery_of(partition, 0)
    receipts.start(delivery)
    holdings.note_committed(holdings.uncommitted())
    holdings.assign(ALL[1:])
    assert partition.lost
    assert not holdings.is_idle()
    assert holdings.claim() == ALL
    receipts.acknowledge(delivery)
    assert holdings.is_idle()
    assert holdings.uncommitted() == {ALL[0]: Progress(1, 1)}
    holdings.release([ALL[0]])
    assert holdings.uncommitted() == {}
    assert holdings.claim() == ALL[1:]


def test_what_comes_back_while_it_is_parted_with_is_not_held_before_it_is_released() -> None:
    holdings = holdings_of(*ALL)
    holdings.assign(ALL[1:])
    assert holdings.assign(ALL) == []
    assert list(holdings.parting) == [ALL[0]]
    holdings.claim()
    holdings.release([ALL[0]])
    assert holdings.assign(ALL) == [ALL[0]]


def test_a_member_that_was_put_out_owns_and_commits_nothing() -> None:
    holdings = holdings_of(*ALL)
    kept = list(holdings.held.values())
    holdings.assign(ALL[1:])
    holdings.lose()
    assert all(partition.lost for partition in kept)
    assert not holdings.claim()
    assert not holdings.uncommitted()
    assert holdings.is_idle()


def test_a_record_counts_as_running_once_however_often_it_is_begun_and_ended() -> None:
    receipts, partition = Receipts(), partition_of(ALL[0])
    begun, refused = delivery_of(partition, 0), delivery_of(partition, 1)
    receipts.start(begun)
    receipts.start(begun)
    assert partition.running == 1
    receipts.acknowledge(refused)  # answered without ever running
    assert partition.running == 1
    receipts.acknowledge(begun)
    receipts.acknowledge(begun)
    assert partition.running == 0


def test_a_new_owner_begins_where_the_last_one_has_committed_if_that_is_still_there() -> None:
    commits = {ALL[0]: (5, ""), ALL[1]: (-1, None), ALL[2]: (3, "")}
    bounds = {ALL[0]: (0, 9), ALL[1]: (2, 9), ALL[2]: (4, 9)}
    assert inherited(commits, bounds) == {
        ALL[0]: Progress(5, 5),
        ALL[1]: Progress(2, 2),
        ALL[2]: Progress(4, 4),
    }
