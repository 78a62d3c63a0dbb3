"""Cancellations: whatever comes on the control topic, memory is bounded and only the right requests are meant."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.cancellation import Cancellation, cancellation_key, encode_cancellation
from schemas.errors import ErrorCode
from schemas.record import Origin
from workers.cancellations import Cancellations, Place

_EPOCH = 7
_DAY_MS = 24 * 3600 * 1000


def place(offset: int, *, topic: str = "t.infer.m", partition: int = 0) -> Origin:
    return Origin(topic, partition, offset)


def cancel(
    cancelled: Cancellations, origin: Origin, *, epoch: int = _EPOCH, reason: str = "", at_ms: int = 1
) -> tuple[bytes, bytes]:
    key, value = cancellation_key(origin, epoch), encode_cancellation(Cancellation(at_ms, reason))
    assert cancelled.apply(key, value)
    return key, value


def known(**bounds: int) -> Cancellations:
    cancelled = Cancellations(**bounds)
    cancelled.know("t.infer.m", _EPOCH)
    return cancelled


def test_a_cancelled_request_is_known_by_its_place_until_its_record_is_removed() -> None:
    cancelled = known()
    key, _ = cancel(cancelled, place(3), reason="the user left")
    assert cancelled.has(place(3))
    assert not cancelled.has(place(4))
    assert not cancelled.has(place(3, partition=1))
    error = cancelled.error(place(3))
    assert (error.code, "the user left" in error.message) == (ErrorCode.CANCELLED, True)
    assert cancelled.take_fresh() == {"t.infer.m"}
    assert cancelled.take_fresh() == set()
    assert cancelled.apply(key, None)
    assert not cancelled.has(place(3))
    assert cancelled.count == 0
    assert cancelled.apply(key, None)


def test_another_life_of_the_topic_means_somebody_else() -> None:
    cancelled = known()
    key, value = cancel(cancelled, place(3), epoch=8)
    assert not cancelled.has(place(3))
    assert cancelled.is_needless(key, value, 1)
    cancel(cancelled, place(3))
    assert cancelled.apply(cancellation_key(place(3), 8), None)
    assert cancelled.has(place(3))


def test_what_came_before_its_topic_was_known_counts_from_then_on() -> None:
    cancelled = Cancellations()
    cancel(cancelled, place(3))
    cancel(cancelled, place(4), epoch=8)
    assert not cancelled.has(place(3))
    cancelled.know("t.infer.m", _EPOCH)
    assert cancelled.has(place(3))
    assert not cancelled.has(place(4))
    assert cancelled.key(place(3)) == cancellation_key(place(3), _EPOCH)


def test_other_records_and_such_that_cannot_be_read_are_left_alone() -> None:
    cancelled = known()
    assert not cancelled.apply(b"model/m", b"{}")
    assert not cancelled.apply(b"cancel/zz/t.infer.m/0/1", b"{}")
    assert not cancelled.apply(None, b"{}")
    assert not cancelled.apply(cancellation_key(place(1), _EPOCH), b"no JSON")
    assert cancelled.count == 0


def test_what_is_committed_of_partitions_that_are_ours_is_done() -> None:
    cancelled = known()
    for origin in (place(1), place(5), place(9), place(0, partition=1), place(0, partition=2)):
        cancel(cancelled, origin)
    ours: dict[Place, int] = {("t.infer.m", 0): 9, ("t.infer.m", 1): 0}
    assert list(cancelled.done(ours.get)) == [place(1), place(5)]


def test_only_what_cancels_nothing_that_could_come_may_go_at_the_start() -> None:
    cancelled = known()
    key, value = cancel(cancelled, place(3), at_ms=1)
    assert not cancelled.is_needless(key, value, 7 * _DAY_MS)
    assert cancelled.is_needless(key, value, 9 * _DAY_MS)
    assert not cancelled.is_needless(key, None, 9 * _DAY_MS)
    assert not cancelled.is_needless(b"model/m", b"{}", 9 * _DAY_MS)
    strange = cancellation_key(place(1, topic="t.infer.other"), 99)
    assert not cancelled.is_needless(strange, value, 2)


def test_there_is_room_for_so_many_and_the_oldest_are_forgotten() -> None:
    cancelled = known(max_known=3, max_strange=2)
    for offset in range(5):
        cancel(cancelled, place(offset))
    assert (cancelled.count, cancelled.forgotten) == (3, 2)
    assert [cancelled.has(place(offset)) for offset in range(5)] == [False, False, True, True, True]
    for offset in range(5):
        cancel(cancelled, place(offset, topic="t.infer.n"))
    cancelled.know("t.infer.n", _EPOCH)
    assert [cancelled.has(place(offset, topic="t.infer.n")) for offset in range(5)] == [False, False, False, True, True]
    assert cancelled.count == 3


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 2), st.sampled_from([_EPOCH, _EPOCH, 8]), st.booleans()),
        max_size=60,
    )
)
def test_the_latest_record_of_each_request_counts(told: list[tuple[int, int, int, bool]]) -> None:
    cancelled = known()
    latest: dict[Origin, bool] = {}
    for offset, partition, epoch, is_cancelled in told:
        origin = place(offset, partition=partition)
        if is_cancelled:
            cancel(cancelled, origin, epoch=epoch)
        else:
            cancelled.apply(cancellation_key(origin, epoch), None)
        if epoch == _EPOCH:
            latest[origin] = is_cancelled
    assert {origin for origin in latest if cancelled.has(origin)} == {
        origin for origin, is_so in latest.items() if is_so
    }
    assert cancelled.count == sum(latest.values())
