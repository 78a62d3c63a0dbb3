"""Deal: who of a group's members gets which partitions. Pure, and done by one member, the leader, in each round.

Sticky: whoever owns a partition keeps it as far as balance allows; balanced: by their number, and each topic over as
many members as possible, so that one model's load does not meet one worker. Moving is for the round after: this one
leaves out what another member still owns (workers/holdings.py). Knows no Kafka client.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from workers.holdings import Key


@dataclass(frozen=True, slots=True)
class Claim:
    """What a member says when a round begins: its topics, what it owns, and the generation that gave it that."""

    topics: Collection[str]
    owned: Iterable[Key] = ()
    generation: int = -1


@dataclass(slots=True)
class _Hand:
    """One member's part: partition numbers by topic."""

    claim: Claim
    numbers: dict[str, list[int]] = field(default_factory=dict)
    size: int = 0

    def take(self, key: Key) -> None:
        self.numbers.setdefault(key[0], []).append(key[1])
        self.size += 1

    def give(self, topic: str) -> Key:
        self.size -= 1
        return topic, self.numbers[topic].pop()

    def count(self, topic: str) -> int:
        return len(self.numbers.get(topic, ()))


def deal(partitions: Mapping[str, int], claims: Mapping[str, Claim]) -> dict[str, list[Key]]:
    """By member, what it shall hold after this round. `partitions`: how many each topic has."""
    owners = _owners(partitions, claims)
    hands = {member: _Hand(claim) for member, claim in sorted(claims.items())}
    for key, owner in sorted(owners.items()):
        hands[owner].take(key)
    for topic in sorted(partitions):
        for number in range(partitions[topic]):
            takers = [hand for hand in hands.values() if topic in hand.claim.topics]
            if takers and (topic, number) not in owners:
                min(takers, key=lambda hand: (hand.size, hand.count(topic))).take((topic, number))
    while _move_one(hands):
        pass
    return {
        member: sorted(
            (topic, number)
            for topic, numbers in hand.numbers.items()
            for number in numbers
            if owners.get((topic, number), member) == member
        )
        for member, hand in hands.items()
    }


def _owners(partitions: Mapping[str, int], claims: Mapping[str, Claim]) -> dict[Key, str]:
    """Of two who claim the same partition, the one of the later generation owns it."""
    owners: dict[Key, tuple[int, str]] = {}
    for member, claim in claims.items():
        for topic, number in claim.owned:
            if topic in claim.topics and number < partitions.get(topic, 0):
                rank = (claim.generation, member)
                owners[topic, number] = max(owners.get((topic, number), rank), rank)
    return {key: member for key, (_, member) in owners.items()}


def _move_one(hands: Mapping[str, _Hand]) -> bool:
    """Bring the hands nearer to each other by one partition; False: that cannot be done."""
    by_size = sorted(hands.values(), key=lambda hand: hand.size)
    for large in reversed(by_size):
        for small in by_size:
            if large.size - small.size < 2:
                break
            topics = [topic for topic, numbers in large.numbers.items() if numbers and topic in small.claim.topics]
            if topics:
                small.take(large.give(max(topics, key=lambda topic: large.count(topic) - small.count(topic))))
                return True
    return False
