import pytest

from workers.model_config import InstanceGroup, ModelConfig, ModelConfigError
from workers.placement import Placement, placements


def config(*groups: InstanceGroup, backend: str = "onnxruntime", **parameters: str) -> ModelConfig:
    return ModelConfig("m", backend, instance_groups=groups or (InstanceGroup(),), parameters=parameters)


@pytest.mark.parametrize(("count", "threads"), [(1, 8), (2, 4), (3, 2), (20, 1)])
def test_instances_on_the_cpu_share_the_cores_out(count: int, threads: int) -> None:
    found = placements(config(InstanceGroup("cpu", count)), gpus=(0,), cores=8)
    assert found == (Placement("cpu", 0, threads),) * count


def test_a_configured_thread_count_wins() -> None:
    assert placements(config(intra_op_thread_count="3"), gpus=(), cores=8) == (Placement("cpu", 0, 3),)


@pytest.mark.parametrize("threads", ["0", "-1", "two", "1.5"])
def test_a_bad_thread_count_is_refused(threads: str) -> None:
    with pytest.raises(ModelConfigError, match="intra_op_thread_count"):
        placements(config(intra_op_thread_count=threads), gpus=(), cores=8)


def test_auto_is_the_gpu_where_there_is_one_and_the_backend_can_use_it() -> None:
    assert [place.kind for place in placements(config(), gpus=(), cores=2)] == ["cpu"]
    assert [place.gpu for place in placements(config(), gpus=(0, 3), cores=2)] == [0, 3]
    assert [place.kind for place in placements(config(backend="python"), gpus=(0, 3), cores=2)] == ["cpu"]


def test_count_is_for_each_listed_gpu() -> None:
    groups = (InstanceGroup("gpu", 2, (1, 2)), InstanceGroup("cpu", 1))
    found = placements(config(*groups), gpus=(0, 1, 2), cores=4)
    assert [(place.kind, place.gpu) for place in found] == [("gpu", 1)] * 2 + [("gpu", 2)] * 2 + [("cpu", 0)]
    assert {place.threads for place in found} == {4}


@pytest.mark.parametrize(
    ("group", "gpus", "field"),
    [
        (InstanceGroup("gpu", 1, (7,)), (0,), "instance_group.gpus"),
        (InstanceGroup("gpu"), (), "instance_group.kind"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(group: InstanceGroup, gpus: tuple[int, ...], field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        placements(config(group), gpus=gpus, cores=2)
    assert caught.value.field == field


def test_an_engine_never_runs_on_the_cpu() -> None:
    with pytest.raises(ModelConfigError):
        placements(config(backend="tensorrt"), gpus=(), cores=2)
