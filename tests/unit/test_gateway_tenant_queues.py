"""TenantQueues: at any time the count is that of the records that were taken and are not done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.tenant_queues import TenantQueues
from schemas.control import ModelAnnouncement
from schemas.model import ModelMetadata
from schemas.progress import Progress


def model(name: str = "m", epoch: int = 7) -> ModelAnnouncement:
    return ModelAnnouncement(ModelMetadata(name, ("1",), "p", 8, (), ()), "pool", f"t.infer.{name}", epoch, 1)


@given(
    tenants=st.lists(st.sampled_from("abc"), max_size=40),
    done=st.lists(st.sets(st.integers(0, 39)), max_size=5),
    partition_count=st.integers(1, 3),
)
def test_who_has_what_queued_is_told_at_any_time(tenants: str, done: list[set[int]], partition_count: int) -> None:
    queues = TenantQueues(lambda tenant: 100)
    left: dict[tuple[int, int], str] = {}
    for number, tenant in enumerate(tenants):
        offset, partition = divmod(number, partition_count)
        queues.put(tenant, model(), (partition, offset, 0))
        left[partition, offset] = tenant
    gone: set[int] = set()
    for more in done:
        gone |= more
        progress = Progress(0, 40, tuple((offset, offset + 1) for offset in sorted(gone)))
        queues.settle("m", 7, [progress] * partition_count)
        left = {place: tenant for place, tenant in left.items() if place[1] not in gone}
        assert {tenant: queues.count(tenant) for tenant in "abc"} == {
            tenant: list(left.values()).count(tenant) for tenant in "abc"
        }
        assert set(queues.models()) == ({"m"} if left else set())


def test_nothing_is_kept_of_tenants_without_a_limit() -> None:
    queues = TenantQueues(lambda tenant: 10 if tenant == "a" else 0)
    queues.put("b", model(), (0, 0, 0))
    assert (queues.count("b"), set(queues.models())) == (0, set())


def test_records_of_a_topic_that_was_made_anew_or_is_gone_count_no_more() -> None:
    queues = TenantQueues(lambda tenant: 10)
    queues.put("a", model(epoch=7), (0, 500, 0))
    queues.put("a", model(epoch=8), (0, 0, 0))
    queues.put("a", model("n"), (3, 2, 0))
    queues.settle("m", 8, [Progress(0, 0)])
    assert queues.count("a") == 2
    queues.forget("n")
    assert (queues.count("a"), set(queues.models())) == (1, {"m"})
